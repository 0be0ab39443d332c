#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/strong.h"
#include "wire/layout.h"

// Defines the Ethernet, IP and UDP headers of a RoCEv2 packet (annex A17.3).  The kernel adds these
// headers to the packets of a socket.  This stack needs them for the ICRC, for captures, and for
// the 40 header bytes at the beginning of UD receives.
namespace verbena::wire {

inline constexpr std::uint16_t kRoceUdpPort = 4791;

inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherTypeIpv6 = 0x86dd;
inline constexpr std::uint8_t kIpProtocolTcp = 6;
inline constexpr std::uint8_t kIpProtocolUdp = 17;

using MacAddress = std::array<std::byte, 6>;

// clang-format off
struct EthernetHeader {
  MacAddress destination{};
  MacAddress source{};
  std::uint16_t ether_type{};

  friend bool operator==(const EthernetHeader&, const EthernetHeader&) = default;

  static consteval auto layout() {
    return wire::layout<14>(
        field<&EthernetHeader::destination>({.byte = 0,  .bits = 48}),
        field<&EthernetHeader::source>     ({.byte = 6,  .bits = 48}),
        field<&EthernetHeader::ether_type> ({.byte = 12, .bits = 16}));
  }
};

// Describes the IPv4 header without options (RFC 791).
struct Ipv4Header {
  std::uint8_t version{4};
  std::uint8_t header_words{5};
  std::uint8_t tos{};
  std::uint16_t total_length{};
  std::uint16_t identification{};
  bool dont_fragment{true};
  bool more_fragments{};
  std::uint16_t fragment_offset{};
  std::uint8_t ttl{64};
  std::uint8_t protocol{kIpProtocolUdp};
  std::uint16_t checksum{};  // see ipv4_checksum()
  std::uint32_t source{};
  std::uint32_t destination{};

  friend bool operator==(const Ipv4Header&, const Ipv4Header&) = default;

  static consteval auto layout() {
    return wire::layout<20>(
        field<&Ipv4Header::version>        ({.byte = 0, .bit = 0, .bits = 4}),
        field<&Ipv4Header::header_words>   ({.byte = 0, .bit = 4, .bits = 4}),
        field<&Ipv4Header::tos>            ({.byte = 1,           .bits = 8}),
        field<&Ipv4Header::total_length>   ({.byte = 2,           .bits = 16}),
        field<&Ipv4Header::identification> ({.byte = 4,           .bits = 16}),
        field<&Ipv4Header::dont_fragment>  ({.byte = 6, .bit = 1, .bits = 1}),
        field<&Ipv4Header::more_fragments> ({.byte = 6, .bit = 2, .bits = 1}),
        field<&Ipv4Header::fragment_offset>({.byte = 6, .bit = 3, .bits = 13}),
        field<&Ipv4Header::ttl>            ({.byte = 8,           .bits = 8}),
        field<&Ipv4Header::protocol>       ({.byte = 9,           .bits = 8}),
        field<&Ipv4Header::checksum>       ({.byte = 10,          .bits = 16}),
        field<&Ipv4Header::source>         ({.byte = 12,          .bits = 32}),
        field<&Ipv4Header::destination>    ({.byte = 16,          .bits = 32}));
  }
};

// Describes the IPv6 header (RFC 8200).  The GRH of InfiniBand has the same layout (vol1 8.3), and
// its next header is 0x1b.
struct Ipv6Header {
  std::uint8_t version{6};
  std::uint8_t traffic_class{};
  std::uint32_t flow_label{};  // 20 bits
  std::uint16_t payload_length{};
  std::uint8_t next_header{kIpProtocolUdp};
  std::uint8_t hop_limit{64};
  Gid source{};
  Gid destination{};

  friend bool operator==(const Ipv6Header&, const Ipv6Header&) = default;

  static consteval auto layout() {
    return wire::layout<40>(
        field<&Ipv6Header::version>       ({.byte = 0, .bit = 0, .bits = 4}),
        field<&Ipv6Header::traffic_class> ({.byte = 0, .bit = 4, .bits = 8}),
        field<&Ipv6Header::flow_label>    ({.byte = 1, .bit = 4, .bits = 20}),
        field<&Ipv6Header::payload_length>({.byte = 4,           .bits = 16}),
        field<&Ipv6Header::next_header>   ({.byte = 6,           .bits = 8}),
        field<&Ipv6Header::hop_limit>     ({.byte = 7,           .bits = 8}),
        field<&Ipv6Header::source>        ({.byte = 8,           .bits = 128}),
        field<&Ipv6Header::destination>   ({.byte = 24,          .bits = 128}));
  }
};

struct UdpHeader {
  std::uint16_t source_port{};
  std::uint16_t destination_port{kRoceUdpPort};
  std::uint16_t length{};    // the length of header and payload
  std::uint16_t checksum{};  // 0 means no checksum

  friend bool operator==(const UdpHeader&, const UdpHeader&) = default;

  static consteval auto layout() {
    return wire::layout<8>(
        field<&UdpHeader::source_port>     ({.byte = 0, .bits = 16}),
        field<&UdpHeader::destination_port>({.byte = 2, .bits = 16}),
        field<&UdpHeader::length>          ({.byte = 4, .bits = 16}),
        field<&UdpHeader::checksum>        ({.byte = 6, .bits = 16}));
  }
};
// clang-format on

// The next functions convert between IPv4 addresses and GIDs of the form ::ffff:a.b.c.d (annex
// A17.4.5.2).  The IPv4 addresses are numbers in host order.
constexpr Gid ipv4_gid(std::uint32_t address) {
  Gid gid;
  gid.bytes[10] = gid.bytes[11] = std::byte{0xff};
  for (std::size_t i = 0; i < 4; ++i)
    gid.bytes[12 + i] = static_cast<std::byte>(address >> 8 * (3 - i));
  return gid;
}
constexpr bool is_ipv4(const Gid& gid) {
  for (std::size_t i = 0; i < 10; ++i) {
    if (gid.bytes[i] != std::byte{0}) return false;
  }
  return gid.bytes[10] == std::byte{0xff} && gid.bytes[11] == std::byte{0xff};
}
// Returns the last four bytes of the GID as a number.  If is_ipv4(gid), this is the IPv4 address.
constexpr std::uint32_t ipv4_address(const Gid& gid) {
  std::uint32_t address = 0;
  for (std::size_t i = 12; i < 16; ++i) {
    address = address << 8 | std::to_integer<std::uint32_t>(gid.bytes[i]);
  }
  return address;
}

// Returns true for the address of a multicast group: 224.0.0.0/4 or ff00::/8.
constexpr bool is_multicast(const Gid& gid) {
  if (is_ipv4(gid)) return ipv4_address(gid) >> 28 == 0xe;
  return gid.bytes[0] == std::byte{0xff};
}
// Returns true for addresses that are only valid together with an interface: fe80::/10 and
// IPv6 multicast groups with the link-local scope.
constexpr bool is_link_local(const Gid& gid) {
  const auto first = std::to_integer<unsigned>(gid.bytes[0]);
  const auto second = std::to_integer<unsigned>(gid.bytes[1]);
  return (first == 0xfe && (second & 0xc0) == 0x80) || (first == 0xff && (second & 0x0f) == 2);
}

// Computes the header checksum of RFC 791 for a header whose checksum bytes are zero.  For a
// complete valid header the result is 0.
std::uint16_t ipv4_checksum(std::span<const std::byte> header);

// Holds the header fields of a frame with a UDP datagram.  Both GIDs have the same IP version.
struct FrameHeaders {
  MacAddress source_mac{};
  MacAddress destination_mac{};
  Gid source{};
  Gid destination{};
  std::uint16_t source_port{};
  std::uint16_t destination_port{kRoceUdpPort};
  std::uint16_t identification{};  // for IPv4 only
  std::uint32_t flow_label{};      // for IPv6 only
  std::uint8_t tos{};              // for IPv6, the traffic class
  std::uint8_t ttl{64};            // for IPv6, the hop limit

  friend bool operator==(const FrameHeaders&, const FrameHeaders&) = default;
};

inline constexpr std::size_t kFrameHeaderBytesMax = 14 + 40 + 8;

// Returns the size of the Ethernet, IP and UDP headers of a frame to this destination.
constexpr std::size_t frame_header_bytes(const Gid& destination) {
  return kSize<EthernetHeader> +
         (is_ipv4(destination) ? kSize<Ipv4Header> : kSize<Ipv6Header>)+kSize<UdpHeader>;
}

// Writes the Ethernet, IP and UDP headers, and returns frame_header_bytes().  The IPv4 header has
// DF set and a checksum.  The UDP header has no checksum.  REQUIRES: the headers fit into `out`,
// and the payload fits into a datagram (64 KiB less headers).
std::size_t write_frame_headers(std::span<std::byte> out, const FrameHeaders& headers,
                                std::size_t udp_payload_bytes);

// Holds a parsed Ethernet frame.  The spans point into the bytes of the frame.
struct Frame {
  FrameHeaders headers{};
  std::uint16_t udp_checksum{};  // not checked, because the ICRC is stronger
  std::span<const std::byte> ip_header{};
  std::span<const std::byte> udp_header{};
  std::span<const std::byte> udp_payload{};
};

// Parses a frame with any UDP datagram over IPv4 or IPv6.  The caller checks the destination port,
// which is kRoceUdpPort for RoCEv2.  Ignores bytes after the datagram (Ethernet padding).  Other
// frames fail with kMalformed and a Drop.
Result<Frame> parse_frame(std::span<const std::byte> ethernet);

}  // namespace verbena::wire
