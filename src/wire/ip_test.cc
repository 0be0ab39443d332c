#include "wire/ip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "wire/drop.h"
#include "wire/hex.h"

namespace verbena::wire {
namespace {

static_assert(ipv4_gid(0x0a4d0002).bytes == hex<"00000000 00000000 0000ffff 0a4d0002">());
static_assert(is_ipv4(ipv4_gid(0)) && !is_ipv4(Gid{}));
static_assert(!is_ipv4(Gid{hex<"fe800000 00000000 0000ffff 0a4d0002">()}));
static_assert(!is_ipv4(Gid{hex<"00000000 00000000 0000fffe 0a4d0002">()}));
static_assert(ipv4_address(ipv4_gid(0xfffefdfc)) == 0xfffefdfc);

// The test data are the example of RFC 1071, empty data, and a complete IPv4 header.
TEST(Ipv4Checksum, IsTheInternetChecksum) {
  EXPECT_EQ(ipv4_checksum(hex<"0001 f203 f4f5 f6f7">()), 0x220d);
  EXPECT_EQ(ipv4_checksum({}), 0xffff);
  EXPECT_EQ(ipv4_checksum(hex<"4500 0073 0000 4000 4011 b861 c0a8 0001 c0a8 00c7">()), 0);
}

constexpr FrameHeaders kIpv4Headers{.source_mac = hex<"525400770002">(),
                                    .destination_mac = hex<"525400770001">(),
                                    .source = ipv4_gid(0x0a4d0003),
                                    .destination = ipv4_gid(0x0a4d0002),
                                    .source_port = 0xd872,
                                    .identification = 0xb6f7,
                                    .tos = 0x68,
                                    .ttl = 3};
constexpr FrameHeaders kIpv6Headers{.source_mac = hex<"525400770002">(),
                                    .destination_mac = hex<"525400770001">(),
                                    .source = {hex<"fd770000 00000000 00000000 00000003">()},
                                    .destination = {hex<"fd770000 00000000 00000000 00000002">()},
                                    .source_port = 0xd872,
                                    .flow_label = 0xabcde,
                                    .tos = 0x68,
                                    .ttl = 3};

std::vector<std::byte> frame_of(const FrameHeaders& headers, std::size_t payload_bytes) {
  std::vector<std::byte> frame(frame_header_bytes(headers.destination) + payload_bytes,
                               std::byte{0x5a});
  EXPECT_EQ(write_frame_headers(frame, headers, payload_bytes), frame.size() - payload_bytes);
  return frame;
}

Drop reason(const std::vector<std::byte>& frame) {
  const auto parsed = parse_frame(frame);
  return parsed ? Drop::kNone : drop_reason(parsed.error());
}

// Corrects the checksum of a damaged IPv4 header, so that a different check detects the damage.
std::vector<std::byte> with_checksum(std::vector<std::byte> frame) {
  const auto header = std::span(frame).subspan(14, 20);
  header[10] = header[11] = std::byte{0};
  const std::uint16_t sum = ipv4_checksum(header);
  header[10] = static_cast<std::byte>(sum >> 8);
  header[11] = static_cast<std::byte>(sum & 0xff);
  return frame;
}

TEST(Frame, RoundTrips) {
  for (const FrameHeaders& headers : {kIpv4Headers, kIpv6Headers}) {
    for (std::size_t size : {0, 1, 16, 4096}) {
      const auto bytes = frame_of(headers, size);
      const auto frame = parse_frame(bytes);
      ASSERT_TRUE(frame.has_value());
      EXPECT_EQ(frame->headers, headers);
      EXPECT_EQ(frame->udp_payload.size(), size);
      EXPECT_EQ(frame->udp_checksum, 0);
      EXPECT_EQ(frame->udp_header.size(), 8u);
      EXPECT_EQ(frame->udp_payload.data() + size, bytes.data() + bytes.size());
    }
  }
}

TEST(Frame, EthernetPaddingIsNotPayload) {
  auto bytes = frame_of(kIpv4Headers, 1);
  bytes.resize(60);
  EXPECT_EQ(parse_frame(bytes)->udp_payload.size(), 1u);
}

TEST(Frame, EveryTruncatedFrameIsDropped) {
  for (const FrameHeaders& headers : {kIpv4Headers, kIpv6Headers}) {
    const auto complete_frame = frame_of(headers, 4);
    for (std::size_t size = 0; size < complete_frame.size(); ++size) {
      const Drop actual = reason(
          {complete_frame.begin(), complete_frame.begin() + static_cast<std::ptrdiff_t>(size)});
      EXPECT_TRUE(actual == Drop::kTooShort || actual == Drop::kLength)
          << size << to_string(actual);
    }
  }
}

TEST(Frame, InvalidIpv4FramesAreDroppedWithTheirReason) {
  const auto damaged = [](std::size_t at, std::uint8_t value) {
    auto frame = frame_of(kIpv4Headers, 4);
    frame[at] = std::byte{value};
    return frame;
  };
  EXPECT_EQ(reason(damaged(12, 0x86)), Drop::kNotIp);  // an unknown ether type
  EXPECT_EQ(reason(damaged(14, 0x65)), Drop::kNotIp);
  EXPECT_EQ(reason(damaged(14, 0x44)), Drop::kNotIp);
  EXPECT_EQ(reason(damaged(14, 0x46)), Drop::kIpOptions);
  EXPECT_EQ(reason(damaged(22, 0x41)), Drop::kIpChecksum);
  EXPECT_EQ(reason(with_checksum(damaged(20, 0x20))), Drop::kFragment);
  EXPECT_EQ(reason(with_checksum(damaged(21, 0x01))), Drop::kFragment);
  EXPECT_EQ(reason(with_checksum(damaged(23, kIpProtocolTcp))), Drop::kNotUdp);
  EXPECT_EQ(reason(with_checksum(damaged(17, 19))), Drop::kLength);
  EXPECT_EQ(reason(with_checksum(damaged(17, 20))), Drop::kTooShort);
  EXPECT_EQ(reason(with_checksum(damaged(16, 0xff))), Drop::kLength);
  EXPECT_EQ(reason(damaged(39, 7)), Drop::kLength);   // the UDP length is shorter than its header
  EXPECT_EQ(reason(damaged(39, 13)), Drop::kLength);  // the UDP length exceeds the datagram
}

TEST(Frame, InvalidIpv6FramesAreDroppedWithTheirReason) {
  const auto damaged = [](std::size_t at, std::uint8_t value) {
    auto frame = frame_of(kIpv6Headers, 4);
    frame[at] = std::byte{value};
    return frame;
  };
  EXPECT_EQ(reason(damaged(14, 0x45)), Drop::kNotIp);
  EXPECT_EQ(reason(damaged(20, 44)), Drop::kFragment);
  EXPECT_EQ(reason(damaged(20, 0)), Drop::kIpOptions);
  EXPECT_EQ(reason(damaged(20, 58)), Drop::kNotUdp);
  EXPECT_EQ(reason(damaged(18, 0xff)), Drop::kLength);
}

}  // namespace
}  // namespace verbena::wire
