#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "wire/ip.h"
#include "wire/layout.h"

// Implements the RDMA IP CM service (annex A11), which uses the IB CM for connections between IP
// addresses and ports.  The service id contains the port.  The private data of a REQ or SIDR_REQ
// begins with the addresses.
namespace verbena::wire {

// clang-format off
// Holds the first 36 bytes of the private data (annex A11.2).  The program's private data follows.
struct RdmaIpCmHeader {
  std::uint8_t major_version{};
  std::uint8_t minor_version{};
  std::uint8_t ip_version{};  // 4 or 6
  std::uint16_t source_port{};
  std::array<std::byte, 16> source_address{};  // an IPv4 address has 12 zero bytes in front
  std::array<std::byte, 16> destination_address{};

  friend bool operator==(const RdmaIpCmHeader&, const RdmaIpCmHeader&) = default;

  static consteval auto layout() {
    return wire::layout<36>(
        field<&RdmaIpCmHeader::major_version>      ({.byte = 0, .bit = 0, .bits = 4}),
        field<&RdmaIpCmHeader::minor_version>      ({.byte = 0, .bit = 4, .bits = 4}),
        field<&RdmaIpCmHeader::ip_version>         ({.byte = 1, .bit = 0, .bits = 4}),
        field<&RdmaIpCmHeader::source_port>        ({.byte = 2,           .bits = 16}),
        field<&RdmaIpCmHeader::source_address>     ({.byte = 4,           .bits = 128}),
        field<&RdmaIpCmHeader::destination_address>({.byte = 20,          .bits = 128}));
  }
};
// clang-format on

inline constexpr std::size_t kRdmaIpCmHeaderBytes = kSize<RdmaIpCmHeader>;

// Returns the header for two addresses in the form of RoCEv2 GIDs.  REQUIRES: both addresses have
// the same IP version.
RdmaIpCmHeader rdma_ip_cm_header(const Gid& source, const Gid& destination,
                                 std::uint16_t source_port);

// Holds two addresses in the form of RoCEv2 GIDs.  IPv4 addresses have the form ::ffff:a.b.c.d.
struct RdmaIpCmAddresses {
  Gid source{};
  Gid destination{};
  friend bool operator==(const RdmaIpCmAddresses&, const RdmaIpCmAddresses&) = default;
};

// Returns the addresses in the header.  Returns nullopt if the major version is not 0, or the IP
// version is neither 4 nor 6.  A request with such a header is not for the RDMA CM.
std::optional<RdmaIpCmAddresses> addresses(const RdmaIpCmHeader& header);

// These constants are the values of PP in a service id 0x0000'0000'01PP'xxxx, where xxxx is the
// port.  The first two are numbers of IP protocols.  The third is a number that Linux has chosen.
inline constexpr std::uint8_t kServiceProtocolTcp = 0x06;
inline constexpr std::uint8_t kServiceProtocolUdp = 0x11;
inline constexpr std::uint8_t kServiceProtocolIb = 0x3f;

struct RdmaCmService {
  std::uint8_t ip_protocol{};
  std::uint16_t port{};
  friend bool operator==(const RdmaCmService&, const RdmaCmService&) = default;
};

constexpr ServiceId rdma_cm_service_id(std::uint8_t ip_protocol, std::uint16_t port) {
  return {std::uint64_t{1} << 24 | std::uint64_t{ip_protocol} << 16 | port};
}

// Returns the service of a service id, or nullopt if the id does not belong to the RDMA IP CM.
constexpr std::optional<RdmaCmService> rdma_cm_service(ServiceId id) {
  if (id.value >> 24 != 1) return std::nullopt;
  return RdmaCmService{.ip_protocol = static_cast<std::uint8_t>(id.value >> 16),
                       .port = static_cast<std::uint16_t>(id.value)};
}

}  // namespace verbena::wire
