#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/strong.h"
#include "wire/ip.h"
#include "wire/layout.h"

// Defines the headers before the BTH of a packet on an InfiniBand link: the local route header
// (LRH, vol1 7.7) and the global route header (GRH, vol1 8.3).  The variant CRC after the ICRC
// belongs to the link.  wire/vcrc.h computes it.
namespace verbena::wire {

// Names the header that follows the LRH (LNH, vol1 table 11).
enum class LinkNextHeader : std::uint8_t {
  kRaw = 0,      // another protocol, identified by an Ethernet type
  kRawIpv6 = 1,  // another protocol over IPv6
  kBth = 2,      // the BTH of a local packet
  kGrh = 3,      // the GRH of a global packet
};

inline constexpr std::uint8_t kGrhNextHeaderBth = 0x1b;
inline constexpr Lid kPermissiveLid{0xffff};
inline constexpr Lid kFirstMulticastLid{0xc000};

// clang-format off
// Describes the local route header (vol1 7.7).
struct Lrh {
  std::uint8_t virtual_lane{};
  std::uint8_t link_version{};
  std::uint8_t service_level{};
  LinkNextHeader next_header{LinkNextHeader::kBth};
  Lid destination{};
  std::uint16_t packet_words{};  // the number of 4-byte words from the LRH to the ICRC
  Lid source{};

  friend bool operator==(const Lrh&, const Lrh&) = default;

  static consteval auto layout() {
    return wire::layout<8>(
        field<&Lrh::virtual_lane> ({.byte = 0, .bit = 0, .bits = 4}),
        field<&Lrh::link_version> ({.byte = 0, .bit = 4, .bits = 4}),
        field<&Lrh::service_level>({.byte = 1, .bit = 0, .bits = 4}),
        field<&Lrh::next_header>  ({.byte = 1, .bit = 6, .bits = 2}),
        field<&Lrh::destination>  ({.byte = 2,           .bits = 16}),
        field<&Lrh::packet_words> ({.byte = 4, .bit = 5, .bits = 11}),
        field<&Lrh::source>       ({.byte = 6,           .bits = 16}));
  }
};
// clang-format on

// Holds the route headers of a packet.  If lrh.next_header is not kGrh, the packet has no GRH.
struct RouteHeaders {
  Lrh lrh{};
  Ipv6Header grh{};

  bool has_grh() const { return lrh.next_header == LinkNextHeader::kGrh; }
};

constexpr std::size_t route_header_bytes(bool has_grh) {
  return kSize<Lrh> + (has_grh ? kSize<Ipv6Header> : 0);
}

// Writes the headers, and returns route_header_bytes().  Computes both lengths and the GRH's next
// header, and ignores their values in `headers`.  REQUIRES: the headers fit into `out`, and the
// packet is shorter than 8 KiB.
std::size_t write_route_headers(std::span<std::byte> out, RouteHeaders headers,
                                std::size_t bth_to_pad_bytes);

// Computes the ICRC of a packet from LRH to pad (vol1 7.8.1).  The ICRC of a packet with a GRH does
// not cover the LRH, because routers change the LRH.  The ICRC of a packet without a GRH covers the
// LRH except the virtual lane.
// REQUIRES: the packet has its route headers and at least a BTH.
std::uint32_t infiniband_icrc(std::span<const std::byte> lrh_to_pad);

// Holds a parsed packet.  `bth_to_pad` points into the bytes of the packet.
struct RoutedPacket {
  RouteHeaders headers{};
  std::span<const std::byte> bth_to_pad{};
};

// Parses a packet from LRH to ICRC, and checks versions, lengths and the ICRC.  Fails with
// kMalformed and a Drop.
Result<RoutedPacket> parse_routed_packet(std::span<const std::byte> lrh_to_icrc);

}  // namespace verbena::wire
