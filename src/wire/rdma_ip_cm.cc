#include "wire/rdma_ip_cm.h"

#include <algorithm>

namespace verbena::wire {
namespace {

constexpr std::uint8_t kIpv4 = 4;
constexpr std::uint8_t kIpv6 = 6;

// The next two functions convert between GIDs and the addresses in the header.
std::array<std::byte, 16> to_header_address(const Gid& gid) {
  if (!is_ipv4(gid)) return gid.bytes;
  std::array<std::byte, 16> address{};
  std::copy(gid.bytes.begin() + 12, gid.bytes.end(), address.begin() + 12);
  return address;
}

Gid to_gid(const std::array<std::byte, 16>& address, std::uint8_t ip_version) {
  return ip_version == kIpv4 ? ipv4_gid(ipv4_address(Gid{address})) : Gid{address};
}

}  // namespace

RdmaIpCmHeader rdma_ip_cm_header(const Gid& source, const Gid& destination,
                                 std::uint16_t source_port) {
  return {.ip_version = is_ipv4(destination) ? kIpv4 : kIpv6,
          .source_port = source_port,
          .source_address = to_header_address(source),
          .destination_address = to_header_address(destination)};
}

std::optional<RdmaIpCmAddresses> addresses(const RdmaIpCmHeader& header) {
  if (header.major_version != 0) return std::nullopt;
  if (header.ip_version != kIpv4 && header.ip_version != kIpv6) return std::nullopt;
  return RdmaIpCmAddresses{.source = to_gid(header.source_address, header.ip_version),
                           .destination = to_gid(header.destination_address, header.ip_version)};
}

}  // namespace verbena::wire
