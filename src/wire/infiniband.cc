#include "wire/infiniband.h"

#include <algorithm>
#include <array>

#include "wire/bth.h"
#include "wire/drop.h"
#include "wire/icrc.h"

namespace verbena::wire {
namespace {

constexpr std::size_t kWordBytes = 4;

// Returns the bytes of the LRH for the ICRC: fields that a switch or router may change are ones.
std::array<std::byte, kSize<Lrh>> masked_lrh(std::span<const std::byte> lrh, bool has_grh) {
  std::array<std::byte, kSize<Lrh>> out;
  out.fill(std::byte{0xff});
  if (has_grh) return out;
  std::ranges::copy(lrh, out.begin());
  out[0] |= std::byte{0xf0};  // virtual lane
  return out;
}

// Returns the bytes of the GRH for the ICRC: fields that a router may change are ones.
std::array<std::byte, kSize<Ipv6Header>> masked_grh(std::span<const std::byte> bytes) {
  Ipv6Header grh = decode_exact<Ipv6Header>(bytes.first<kSize<Ipv6Header>>());
  grh.traffic_class = 0xff;
  grh.flow_label = 0xfffff;
  grh.hop_limit = 0xff;
  return encode(grh);
}

}  // namespace

std::size_t write_route_headers(std::span<std::byte> out, RouteHeaders headers,
                                std::size_t bth_to_pad_bytes) {
  const bool has_grh = headers.has_grh();
  const std::size_t payload_bytes = bth_to_pad_bytes + kIcrcBytes;
  headers.lrh.packet_words =
      static_cast<std::uint16_t>((route_header_bytes(has_grh) + payload_bytes) / kWordBytes);
  encode_to(out, headers.lrh);
  if (has_grh) {
    headers.grh.next_header = kGrhNextHeaderBth;
    headers.grh.payload_length = static_cast<std::uint16_t>(payload_bytes);
    encode_to(out.subspan(kSize<Lrh>), headers.grh);
  }
  return route_header_bytes(has_grh);
}

std::uint32_t infiniband_icrc(std::span<const std::byte> lrh_to_pad) {
  const auto lrh_bytes = lrh_to_pad.first<kSize<Lrh>>();
  const bool has_grh = decode_exact<Lrh>(lrh_bytes).next_header == LinkNextHeader::kGrh;
  VB_CHECK(lrh_to_pad.size() >= route_header_bytes(has_grh) + kSize<Bth>);
  std::uint32_t crc = crc32(0, masked_lrh(lrh_bytes, has_grh));
  std::span<const std::byte> rest = lrh_to_pad.subspan<kSize<Lrh>>();
  if (has_grh) {
    crc = crc32(crc, masked_grh(rest));
    rest = rest.subspan<kSize<Ipv6Header>>();
  }
  std::array<std::byte, kSize<Bth>> bth;
  std::ranges::copy(rest.first<kSize<Bth>>(), bth.begin());
  bth[4] = std::byte{0xff};  // FECN, BECN, reserved
  return crc32(crc32(crc, bth), rest.subspan<kSize<Bth>>());
}

Result<RoutedPacket> parse_routed_packet(std::span<const std::byte> lrh_to_icrc) {
  if (lrh_to_icrc.size() < kSize<Lrh>) return drop(Drop::kTooShort);
  RoutedPacket packet;
  packet.headers.lrh = decode_exact<Lrh>(lrh_to_icrc.first<kSize<Lrh>>());
  const Lrh& lrh = packet.headers.lrh;
  const bool has_grh = packet.headers.has_grh();
  if (lrh.link_version != 0 || (!has_grh && lrh.next_header != LinkNextHeader::kBth)) {
    return drop(Drop::kNotInfiniband);
  }
  const std::size_t headers_bytes = route_header_bytes(has_grh);
  if (lrh_to_icrc.size() < headers_bytes + kSize<Bth> + kIcrcBytes) return drop(Drop::kTooShort);
  if (lrh.packet_words * kWordBytes != lrh_to_icrc.size()) return drop(Drop::kLength);
  if (has_grh) {
    packet.headers.grh =
        decode_exact<Ipv6Header>(lrh_to_icrc.subspan<kSize<Lrh>, kSize<Ipv6Header>>());
    const Ipv6Header& grh = packet.headers.grh;
    if (grh.version != 6 || grh.next_header != kGrhNextHeaderBth) {
      return drop(Drop::kNotInfiniband);
    }
    if (grh.payload_length != lrh_to_icrc.size() - headers_bytes) return drop(Drop::kLength);
  }
  const IcrcSplit split = VB_TRY(split_icrc(lrh_to_icrc.subspan(headers_bytes)));
  if (infiniband_icrc(lrh_to_icrc.first(lrh_to_icrc.size() - kIcrcBytes)) != split.icrc) {
    return drop(Drop::kIcrc, "the ICRC does not match");
  }
  packet.bth_to_pad = split.bth_to_pad;
  return packet;
}

}  // namespace verbena::wire
