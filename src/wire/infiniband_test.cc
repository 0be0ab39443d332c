#include "wire/infiniband.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "wire/bth.h"
#include "wire/drop.h"
#include "wire/headers.h"
#include "wire/hex.h"
#include "wire/icrc.h"
#include "wire/test_example.h"

namespace verbena::wire {
namespace {

constexpr Lrh kLrh{.virtual_lane = 7,
                   .service_level = 1,
                   .next_header = LinkNextHeader::kBth,
                   .destination = {0x375c},
                   .packet_words = 0x00e,
                   .source = {0x17d2}};
static_assert(encode(kLrh) == hex<"7012 375c 000e 17d2">());
static_assert(decode_exact<Lrh>(encode(kLrh)) == kLrh);
static_assert(encode(Lrh{.virtual_lane = 0xf,
                         .link_version = 0xf,
                         .service_level = 0xf,
                         .next_header = LinkNextHeader::kGrh,
                         .packet_words = 0x7ff}) == hex<"fff3 0000 07ff 0000">());

// Returns a packet with these headers, random bytes from BTH to pad, and the right ICRC.
std::vector<std::byte> random_packet(const RouteHeaders& headers, std::size_t transport_bytes) {
  Random random(transport_bytes);
  const std::size_t route_bytes = route_header_bytes(headers.has_grh());
  std::vector<std::byte> packet(route_bytes + transport_bytes + kIcrcBytes);
  for (std::byte& byte : packet) byte = static_cast<std::byte>(random.next());
  EXPECT_EQ(write_route_headers(packet, headers, transport_bytes), route_bytes);
  const auto all = std::span(packet);
  store_icrc(all.last(kIcrcBytes), infiniband_icrc(all.first(packet.size() - kIcrcBytes)));
  return packet;
}

RouteHeaders global_headers() {
  return {.lrh = {.service_level = 3,
                  .next_header = LinkNextHeader::kGrh,
                  .destination = {9},
                  .source = {8}},
          .grh = {.traffic_class = 0x12,
                  .flow_label = 0x34567,
                  .hop_limit = 5,
                  .source = {hex<"fe80000000000000 0000000000000001">()},
                  .destination = {hex<"fe80000000000000 0000000000000002">()}}};
}

Drop reason(std::span<const std::byte> packet) {
  const auto parsed = parse_routed_packet(packet);
  return parsed ? Drop::kNone : drop_reason(parsed.error());
}

TEST(InfinibandPackets, ExampleOfTheSpecificationIsParsed) {
  const auto packet = parse_routed_packet(kExamplePacket);
  ASSERT_TRUE(packet.has_value());
  EXPECT_EQ(packet->headers.lrh, kLrh);
  const auto transport = parse_transport(packet->bth_to_pad);
  ASSERT_TRUE(transport.has_value());
  EXPECT_EQ(transport->bth.opcode, Opcode::kRcWriteOnly);
  EXPECT_EQ(transport->bth.destination_qpn, Qpn{0x87b1b3});
  EXPECT_EQ(transport->reth.dma_length_bytes, 14u);
  EXPECT_EQ(transport->payload.size(), 14u);
}

TEST(InfinibandPackets, WrittenHeadersAreParsedAgain) {
  for (const std::size_t bytes : {12u, 16u, 300u, 4096u + 60u}) {
    const RouteHeaders headers = global_headers();
    const auto bytes_of_packet = random_packet(headers, bytes);
    const auto packet = parse_routed_packet(bytes_of_packet);
    ASSERT_TRUE(packet.has_value());
    EXPECT_EQ(packet->bth_to_pad.size(), bytes);
    EXPECT_EQ(packet->headers.lrh.packet_words, bytes_of_packet.size() / 4);
    Ipv6Header grh = packet->headers.grh;
    EXPECT_EQ(grh.payload_length, bytes + kIcrcBytes);
    EXPECT_EQ(grh.next_header, 0x1b);
    grh.payload_length = 0;
    grh.next_header = headers.grh.next_header;
    EXPECT_EQ(grh, headers.grh);
  }
}

TEST(InfinibandPackets, IcrcOfALocalPacketIgnoresOnlyTheVirtualLaneAndBthByteFour) {
  auto packet = random_packet({.lrh = kLrh}, 20);
  for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
    packet[bit / 8] ^= static_cast<std::byte>(0x80u >> bit % 8);
    const bool is_variant = bit < 4 || bit / 8 == 8 + 4;
    EXPECT_EQ(reason(packet) == Drop::kNone, is_variant) << "bit " << bit;
    packet[bit / 8] ^= static_cast<std::byte>(0x80u >> bit % 8);
  }
}

// A router replaces the LRH, and changes traffic class, flow label and hop limit.
TEST(InfinibandPackets, IcrcOfAGlobalPacketIgnoresFieldsThatARouterChanges) {
  const auto packet = random_packet(global_headers(), 20);
  const auto reason_after = [&](auto change) {
    auto routed = packet;
    RouteHeaders headers = global_headers();
    change(headers);
    write_route_headers(routed, headers, 20);
    return reason(routed);
  };
  EXPECT_EQ(reason_after([](RouteHeaders& h) { h.lrh.source = h.lrh.destination = {77}; }),
            Drop::kNone);
  EXPECT_EQ(reason_after([](RouteHeaders& h) { h.lrh.service_level = 9; }), Drop::kNone);
  EXPECT_EQ(reason_after([](RouteHeaders& h) { h.grh.traffic_class = 9; }), Drop::kNone);
  EXPECT_EQ(reason_after([](RouteHeaders& h) { h.grh.flow_label = 9; }), Drop::kNone);
  EXPECT_EQ(reason_after([](RouteHeaders& h) { h.grh.hop_limit = 9; }), Drop::kNone);
  EXPECT_EQ(reason_after([](RouteHeaders& h) { h.grh.source = {}; }), Drop::kIcrc);
  EXPECT_EQ(reason_after([](RouteHeaders& h) { h.grh.destination = {}; }), Drop::kIcrc);
}

TEST(InfinibandPackets, OtherProtocolsAndWrongLengthsAreDropped) {
  auto packet = random_packet(global_headers(), 20);
  for (std::size_t size = 0; size < packet.size(); ++size) {
    EXPECT_NE(reason(std::span(packet).first(size)), Drop::kNone) << size;
  }
  for (const unsigned raw : {0u, 1u}) {  // LNH
    auto other = packet;
    other[1] = static_cast<std::byte>(0x30u | raw);
    EXPECT_EQ(reason(other), Drop::kNotInfiniband);
  }
  packet[8 + 6] = std::byte{kIpProtocolUdp};
  EXPECT_EQ(reason(packet), Drop::kNotInfiniband);
  auto longer = random_packet(global_headers(), 20);
  longer.insert(longer.end(), 4, std::byte{0});
  EXPECT_EQ(reason(longer), Drop::kLength);
}

}  // namespace
}  // namespace verbena::wire
