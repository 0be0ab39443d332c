#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "wire/ip.h"
#include "wire/layout.h"

// Defines the frames with which IPoIB interfaces resolve addresses: ARP for IPv4 (RFC 826) and
// neighbour discovery for IPv6 (RFC 4861), with the link-layer addresses of InfiniBand (RFC 4391).
// A frame is the payload of a UD packet, without an Ethernet header:
//
//   | encapsulation header 4 | ARP 56                                        |
//   | encapsulation header 4 | IPv6 40 | ICMPv6 message 24 | option 24, or 0 |
namespace verbena::wire {

inline constexpr std::uint16_t kEtherTypeArp = 0x0806;
inline constexpr std::uint16_t kArpHardwareInfiniband = 32;
inline constexpr std::uint8_t kIpProtocolIcmpv6 = 58;

// clang-format off
// Describes the encapsulation header (RFC 4391 section 6).  Its other two bytes are reserved.
struct IpoibHeader {
  std::uint16_t ether_type{};

  friend bool operator==(const IpoibHeader&, const IpoibHeader&) = default;

  static consteval auto layout() {
    return wire::layout<4>(
        field<&IpoibHeader::ether_type>({.byte = 0, .bits = 16}));
  }
};

// Describes the link-layer address of an IPoIB interface (RFC 4391 section 9.1.1).  The GID
// identifies the port, and the QPN the interface at the port.
struct IpoibAddress {
  std::uint8_t flags{};  // for connected mode (RFC 4755): 0x80 is RC, 0x40 is UC
  Qpn qpn{};
  Gid gid{};

  friend bool operator==(const IpoibAddress&, const IpoibAddress&) = default;

  static consteval auto layout() {
    return wire::layout<20>(
        field<&IpoibAddress::flags>({.byte = 0, .bits = 8}),
        field<&IpoibAddress::qpn>  ({.byte = 1, .bits = 24}),
        field<&IpoibAddress::gid>  ({.byte = 4, .bits = 128}));
  }
};

enum class ArpOperation : std::uint16_t { kRequest = 1, kReply = 2 };

// Describes an ARP message (RFC 826) with the sizes of RFC 4391 section 9.2.  The receiver of a
// request ignores the target's link-layer address.
struct IpoibArp {
  std::uint16_t hardware_type{kArpHardwareInfiniband};
  std::uint16_t protocol_type{kEtherTypeIpv4};
  std::uint8_t hardware_bytes{kSize<IpoibAddress>};
  std::uint8_t protocol_bytes{4};
  ArpOperation operation{ArpOperation::kRequest};
  IpoibAddress sender{};
  std::uint32_t sender_ip{};
  IpoibAddress target{};
  std::uint32_t target_ip{};

  friend bool operator==(const IpoibArp&, const IpoibArp&) = default;

  static consteval auto layout() {
    return wire::layout<56>(
        field<&IpoibArp::hardware_type> ({.byte = 0,  .bits = 16}),
        field<&IpoibArp::protocol_type> ({.byte = 2,  .bits = 16}),
        field<&IpoibArp::hardware_bytes>({.byte = 4,  .bits = 8}),
        field<&IpoibArp::protocol_bytes>({.byte = 5,  .bits = 8}),
        field<&IpoibArp::operation>     ({.byte = 6,  .bits = 16}),
        field<&IpoibArp::sender>        ({.byte = 8,  .bits = 160}),
        field<&IpoibArp::sender_ip>     ({.byte = 28, .bits = 32}),
        field<&IpoibArp::target>        ({.byte = 32, .bits = 160}),
        field<&IpoibArp::target_ip>     ({.byte = 52, .bits = 32}));
  }
};

enum class Icmpv6Type : std::uint8_t {
  kNeighbourSolicitation = 135,
  kNeighbourAdvertisement = 136,
};

// Describes a solicitation or advertisement without options (RFC 4861 sections 4.3 and 4.4).  Only
// advertisements use the three flags.
struct NeighbourHeader {
  Icmpv6Type type{};
  std::uint8_t code{};
  std::uint16_t checksum{};
  bool router{};
  bool solicited{};
  bool override_cache{};
  Gid target{};

  friend bool operator==(const NeighbourHeader&, const NeighbourHeader&) = default;

  static consteval auto layout() {
    return wire::layout<24>(
        field<&NeighbourHeader::type>          ({.byte = 0,           .bits = 8}),
        field<&NeighbourHeader::code>          ({.byte = 1,           .bits = 8}),
        field<&NeighbourHeader::checksum>      ({.byte = 2,           .bits = 16}),
        field<&NeighbourHeader::router>        ({.byte = 4, .bit = 0, .bits = 1}),
        field<&NeighbourHeader::solicited>     ({.byte = 4, .bit = 1, .bits = 1}),
        field<&NeighbourHeader::override_cache>({.byte = 4, .bit = 2, .bits = 1}),
        field<&NeighbourHeader::target>        ({.byte = 8,           .bits = 128}));
  }
};

enum class NeighbourOption : std::uint8_t { kSourceLinkAddress = 1, kTargetLinkAddress = 2 };

// Describes the option with a link-layer address (RFC 4391 section 9.3).  The two bytes before the
// address are padding.
struct LinkAddressOption {
  NeighbourOption type{};
  std::uint8_t words{3};  // the length of the option in units of 8 bytes
  IpoibAddress address{};

  friend bool operator==(const LinkAddressOption&, const LinkAddressOption&) = default;

  static consteval auto layout() {
    return wire::layout<24>(
        field<&LinkAddressOption::type>   ({.byte = 0, .bits = 8}),
        field<&LinkAddressOption::words>  ({.byte = 1, .bits = 8}),
        field<&LinkAddressOption::address>({.byte = 4, .bits = 160}));
  }
};
// clang-format on

// Asks for the link-layer address of an IPv6 address.
struct NeighbourSolicitation {
  Gid source{};       // from the IPv6 header; zero during duplicate address detection
  Gid destination{};  // from the IPv6 header
  Gid target{};
  std::optional<IpoibAddress> source_link_address{};

  friend bool operator==(const NeighbourSolicitation&, const NeighbourSolicitation&) = default;
};

// Announces the link-layer address of an IPv6 address.
struct NeighbourAdvertisement {
  Gid source{};
  Gid destination{};
  Gid target{};
  bool router = false;
  bool solicited = false;
  bool override_cache = false;  // the receiver replaces the link-layer address in its cache
  std::optional<IpoibAddress> target_link_address{};

  friend bool operator==(const NeighbourAdvertisement&, const NeighbourAdvertisement&) = default;
};

using ResolutionFrame = std::variant<IpoibArp, NeighbourSolicitation, NeighbourAdvertisement>;

// Returns the complete frame of a message, with its headers and checksum.
std::vector<std::byte> write_ipoib_frame(const ResolutionFrame& message);

// Parses a frame of address resolution.  Padding may follow the frame.  Fails with kMalformed and a
// Drop:
//  * kNotAddressResolution: the frame has another purpose, such as a datagram.
//  * kArp: IPoIB does not use such an ARP message, for example that of an Ethernet interface.
//  * kNeighbourDiscovery: the frame violates RFC 4861 section 7.1.1 or 7.1.2, or contains a mapped
//    IPv4 address.
//  * kIcmpChecksum: the ICMPv6 checksum is wrong.
//  * kTooShort, kNotIp, kLength: the frame has too few bytes or an invalid IPv6 header.
Result<ResolutionFrame> parse_ipoib_frame(std::span<const std::byte> frame);

// Computes the ICMPv6 checksum of a message whose checksum bytes are zero (RFC 4443 section 2.3).
// For a complete valid message the result is 0.
std::uint16_t icmpv6_checksum(const Gid& source, const Gid& destination,
                              std::span<const std::byte> message);

// kAllNodes is the group ff02::1.  All IPv6 interfaces of a link are members of this group.
inline constexpr Gid kAllNodes = [] {
  Gid gid;
  gid.bytes[0] = std::byte{0xff};
  gid.bytes[1] = std::byte{0x02};
  gid.bytes[15] = std::byte{0x01};
  return gid;
}();

// Returns the multicast group for solicitations of an IPv6 address: ff02::1:ffXX:XXXX with the last
// 24 bits of the address (RFC 4291 section 2.7.1).  Few interfaces join the same group, so a
// solicitation reaches few interfaces with other addresses.
constexpr Gid solicited_node_group(const Gid& address) {
  Gid gid = kAllNodes;
  gid.bytes[11] = std::byte{0x01};
  gid.bytes[12] = std::byte{0xff};
  for (std::size_t i = 13; i < 16; ++i) gid.bytes[i] = address.bytes[i];
  return gid;
}
constexpr bool is_solicited_node_group(const Gid& gid) { return gid == solicited_node_group(gid); }

}  // namespace verbena::wire
