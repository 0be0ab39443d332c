#include "wire/ipoib.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "wire/address_text.h"
#include "wire/drop.h"
#include "wire/hex.h"

// The expected bytes are written by hand according to RFC 826, 4391 and 4861.  tshark 4.0 decodes
// the bytes to the same values, and accepts the checksums (text2pcap -l 242, after a GRH).

namespace verbena::wire {
namespace {

using FrameBytes = std::vector<std::byte>;

template <HexText Text>
FrameBytes bytes_of() {
  const auto all = hex<Text>();
  return {all.begin(), all.end()};
}

const IpoibAddress kAlice{.qpn = {0x4a}, .gid = {hex<"fe80000000000000 0002c90300000011">()}};
const IpoibAddress kBob{.qpn = {0x4b}, .gid = {hex<"fe80000000000000 0002c90300000022">()}};
const Gid kAliceIpv6{hex<"fd00000000000000 0000000000000001">()};
const Gid kBobIpv6{hex<"fd00000000000000 000000000a0b0c02">()};
const Gid kBobGroup{hex<"ff02000000000000 00000001ff0b0c02">()};

struct IpoibExample {
  const char* name;
  ResolutionFrame message;
  FrameBytes frame;
};

std::vector<IpoibExample> ipoib_examples() {
  return {
      {"ARP request",
       IpoibArp{.operation = ArpOperation::kRequest,
                .sender = kAlice,
                .sender_ip = 0x0a000001,
                .target_ip = 0x0a000002},
       bytes_of<"0806 0000 | 0020 0800 14 04 0001"
                "| 00 00004a fe80000000000000 0002c90300000011 | 0a000001"
                "| 00 000000 0000000000000000 0000000000000000 | 0a000002">()},
      {"ARP reply",
       IpoibArp{.operation = ArpOperation::kReply,
                .sender = kBob,
                .sender_ip = 0x0a000002,
                .target = kAlice,
                .target_ip = 0x0a000001},
       bytes_of<"0806 0000 | 0020 0800 14 04 0002"
                "| 00 00004b fe80000000000000 0002c90300000022 | 0a000002"
                "| 00 00004a fe80000000000000 0002c90300000011 | 0a000001">()},
      {"neighbour solicitation",
       NeighbourSolicitation{.source = kAliceIpv6,
                             .destination = kBobGroup,
                             .target = kBobIpv6,
                             .source_link_address = kAlice},
       bytes_of<"86dd 0000 | 60000000 0030 3a ff"
                "| fd00000000000000 0000000000000001 | ff02000000000000 00000001ff0b0c02"
                "| 87 00 958e 00000000 fd00000000000000 000000000a0b0c02"
                "| 01 03 0000 00 00004a fe80000000000000 0002c90300000011">()},
      {"neighbour advertisement",
       NeighbourAdvertisement{.source = kBobIpv6,
                              .destination = kAliceIpv6,
                              .target = kBobIpv6,
                              .solicited = true,
                              .override_cache = true,
                              .target_link_address = kBob},
       bytes_of<"86dd 0000 | 60000000 0030 3a ff"
                "| fd00000000000000 000000000a0b0c02 | fd00000000000000 0000000000000001"
                "| 88 00 2a80 60000000 fd00000000000000 000000000a0b0c02"
                "| 02 03 0000 00 00004b fe80000000000000 0002c90300000022">()},
      {"duplicate address detection",
       NeighbourSolicitation{.destination = kBobGroup, .target = kBobIpv6},
       bytes_of<"86dd 0000 | 60000000 0018 3a ff"
                "| 0000000000000000 0000000000000000 | ff02000000000000 00000001ff0b0c02"
                "| 87 00 5b8d 00000000 fd00000000000000 000000000a0b0c02">()},
  };
}

TEST(Ipoib, WritesTheBytesOfTheRfcs) {
  for (const IpoibExample& example : ipoib_examples()) {
    EXPECT_EQ(write_ipoib_frame(example.message), example.frame) << example.name;
  }
}

TEST(Ipoib, ReadsTheBytesOfTheRfcs) {
  for (const IpoibExample& example : ipoib_examples()) {
    const auto parsed = parse_ipoib_frame(example.frame);
    ASSERT_TRUE(parsed.has_value()) << example.name << to_string(drop_reason(parsed.error()));
    EXPECT_EQ(*parsed, example.message) << example.name;
  }
}

TEST(Ipoib, PaddingAfterAFrameIsIgnored) {
  for (IpoibExample& example : ipoib_examples()) {
    example.frame.resize(example.frame.size() + 9, std::byte{0xee});
    const auto parsed = parse_ipoib_frame(example.frame);
    ASSERT_TRUE(parsed.has_value()) << example.name;
    EXPECT_EQ(*parsed, example.message) << example.name;
  }
}

TEST(Ipoib, EveryTruncatedFrameIsDropped) {
  for (const IpoibExample& example : ipoib_examples()) {
    for (std::size_t size = 0; size < example.frame.size(); ++size) {
      const auto parsed = parse_ipoib_frame(std::span(example.frame).first(size));
      ASSERT_FALSE(parsed.has_value()) << example.name << size;
      const Drop actual = drop_reason(parsed.error());
      EXPECT_TRUE(actual == Drop::kTooShort || actual == Drop::kLength) << example.name << size;
    }
  }
}

// Changes a byte in the frame of an example.  If `corrects_checksum` is true, corrects the ICMPv6
// checksum.  Returns the reason for which the parser drops the frame.
Drop ipoib_reason(const char* name, std::size_t at, std::uint8_t value,
                  bool corrects_checksum = false) {
  auto examples = ipoib_examples();
  const auto found = std::ranges::find_if(examples, [&](const IpoibExample& example) {
    return example.name == std::string_view(name);
  });
  FrameBytes& frame = found->frame;
  frame.at(at) = std::byte{value};
  if (corrects_checksum) {
    frame[46] = frame[47] = std::byte{0};
    const auto gid_at = [&](std::size_t offset) {
      Gid gid;
      std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(offset), 16, gid.bytes.begin());
      return gid;
    };
    const std::uint16_t sum = icmpv6_checksum(gid_at(12), gid_at(28), std::span(frame).subspan(44));
    frame[46] = static_cast<std::byte>(sum >> 8);
    frame[47] = static_cast<std::byte>(sum & 0xff);
  }
  const auto parsed = parse_ipoib_frame(frame);
  return parsed ? Drop::kNone : drop_reason(parsed.error());
}

TEST(Ipoib, FramesOfOtherProtocolsAreNotAddressResolution) {
  EXPECT_EQ(ipoib_reason("ARP request", 1, 0x00), Drop::kNotAddressResolution);            // IPv4
  EXPECT_EQ(ipoib_reason("neighbour solicitation", 10, 17), Drop::kNotAddressResolution);  // UDP
  // The type 134 is a router advertisement.
  EXPECT_EQ(ipoib_reason("neighbour solicitation", 44, 134), Drop::kNotAddressResolution);
}

TEST(Ipoib, ArpThatIpoibDoesNotUseIsDropped) {
  EXPECT_EQ(ipoib_reason("ARP request", 5, 1), Drop::kArp);      // Ethernet
  EXPECT_EQ(ipoib_reason("ARP request", 6, 0x86), Drop::kArp);   // another protocol
  EXPECT_EQ(ipoib_reason("ARP request", 8, 6), Drop::kArp);      // hardware address size
  EXPECT_EQ(ipoib_reason("ARP request", 9, 16), Drop::kArp);     // protocol address size
  EXPECT_EQ(ipoib_reason("ARP request", 11, 0), Drop::kArp);     // operation
  EXPECT_EQ(ipoib_reason("ARP request", 11, 3), Drop::kArp);     // reverse ARP
  EXPECT_EQ(ipoib_reason("ARP request", 3, 0xff), Drop::kNone);  // reserved byte
}

TEST(Ipoib, InvalidNeighbourDiscoveryIsDropped) {
  const char* const solicit = "neighbour solicitation";
  const char* const advert = "neighbour advertisement";
  EXPECT_EQ(ipoib_reason(solicit, 4, 0x50), Drop::kNotIp);
  EXPECT_EQ(ipoib_reason(solicit, 67, 0x03), Drop::kIcmpChecksum);
  EXPECT_EQ(ipoib_reason(solicit, 27, 0x02), Drop::kIcmpChecksum);       // another IPv6 source
  EXPECT_EQ(ipoib_reason(solicit, 11, 254), Drop::kNeighbourDiscovery);  // forwarded by a router
  EXPECT_EQ(ipoib_reason(solicit, 45, 1, true), Drop::kNeighbourDiscovery);     // code
  EXPECT_EQ(ipoib_reason(solicit, 12, 0xff, true), Drop::kNeighbourDiscovery);  // multicast source
  EXPECT_EQ(ipoib_reason(solicit, 52, 0xff, true), Drop::kNeighbourDiscovery);  // multicast target
  // An advertisement to a group must not have the solicited flag.
  EXPECT_EQ(ipoib_reason(advert, 28, 0xff, true), Drop::kNeighbourDiscovery);
  EXPECT_EQ(ipoib_reason(advert, 48, 0xa0, true), Drop::kNone);  // router flag
}

TEST(Ipoib, InvalidOptionsAreDropped) {
  const char* const solicit = "neighbour solicitation";
  EXPECT_EQ(ipoib_reason(solicit, 69, 0, true), Drop::kNeighbourDiscovery);  // length 0
  EXPECT_EQ(ipoib_reason(solicit, 69, 1, true), Drop::kNeighbourDiscovery);  // an Ethernet address
  EXPECT_EQ(ipoib_reason(solicit, 69, 4, true), Drop::kNeighbourDiscovery);  // past the end
  EXPECT_EQ(ipoib_reason(solicit, 68, 14, true), Drop::kNone);               // an unknown option
  EXPECT_EQ(ipoib_reason(solicit, 71, 0xff, true), Drop::kNone);             // padding
}

TEST(Ipoib, OtherOptionsAreSkippedAndTheFirstAddressIsUsed) {
  FrameBytes frame = bytes_of<
      "86dd 0000 | 60000000 0050 3a ff"
      "| fd00000000000000 0000000000000001 | ff02000000000000 00000001ff0b0c02"
      "| 87 00 0000 00000000 fd00000000000000 000000000a0b0c02"
      "| 0e 01 010203040506"
      "| 01 03 0000 00 00004a fe80000000000000 0002c90300000011"
      "| 01 03 0000 00 00004b fe80000000000000 0002c90300000022">();
  const std::uint16_t sum = icmpv6_checksum(kAliceIpv6, kBobGroup, std::span(frame).subspan(44));
  frame[46] = static_cast<std::byte>(sum >> 8);
  frame[47] = static_cast<std::byte>(sum & 0xff);
  const auto parsed = parse_ipoib_frame(frame);
  ASSERT_TRUE(parsed.has_value()) << to_string(drop_reason(parsed.error()));
  EXPECT_EQ(std::get<NeighbourSolicitation>(*parsed).source_link_address, kAlice);
}

// Tests a rule of RFC 4861 section 7.1.1.
TEST(Ipoib, DuplicateAddressDetectionNeedsTheGroupAndNoLinkAddress) {
  const NeighbourSolicitation valid{.destination = kBobGroup, .target = kBobIpv6};
  EXPECT_TRUE(parse_ipoib_frame(write_ipoib_frame(valid)).has_value());
  NeighbourSolicitation with_address = valid;
  with_address.source_link_address = kAlice;
  EXPECT_FALSE(parse_ipoib_frame(write_ipoib_frame(with_address)).has_value());
  NeighbourSolicitation unicast = valid;
  unicast.destination = kBobIpv6;
  EXPECT_FALSE(parse_ipoib_frame(write_ipoib_frame(unicast)).has_value());
}

// The address ::ffff:10.0.0.2 represents 10.0.0.2, so its entry would replace the entry of ARP.
TEST(Ipoib, NeighbourDiscoveryDoesNotAffectIpv4) {
  EXPECT_FALSE(parse_ipoib_frame(
                   write_ipoib_frame(NeighbourAdvertisement{.source = kBobIpv6,
                                                            .destination = kAliceIpv6,
                                                            .target = *parse_address("10.0.0.2"),
                                                            .target_link_address = kBob}))
                   .has_value());
}

TEST(Ipoib, SolicitedNodeGroupHasTheLast24BitsOfTheAddress) {
  EXPECT_EQ(solicited_node_group(kBobIpv6), kBobGroup);
  EXPECT_TRUE(is_solicited_node_group(kBobGroup));
  EXPECT_FALSE(is_solicited_node_group(kBobIpv6));
  EXPECT_FALSE(is_solicited_node_group(kAllNodes));
  EXPECT_EQ(address_text(kAllNodes), "ff02::1");
}

// The checksum of a message with an odd length includes a zero byte after the message (RFC 1071).
// The sums of the two messages differ only by the message length, which the checksum covers.
TEST(Ipoib, ChecksumCoversAnOddLastByte) {
  const FrameBytes odd = bytes_of<"8800 0000 01">();
  const FrameBytes even = bytes_of<"8800 0000 0100">();
  const std::uint16_t odd_sum = icmpv6_checksum(kAliceIpv6, kBobIpv6, odd);
  EXPECT_EQ(odd_sum, icmpv6_checksum(kAliceIpv6, kBobIpv6, even) + 1);
}

}  // namespace
}  // namespace verbena::wire
