#include "hosts/ipoib_addresses.h"

#include <cstdint>

#include "wire/ip.h"

namespace verbena::hosts {
namespace {

constexpr std::uint32_t kHostsMax = 65534;  // the most hosts of an IPv4 /16 network
constexpr std::uint8_t kIpv4PrefixBits = 16;
constexpr std::uint8_t kIpv6PrefixBits = 64;

}  // namespace

std::vector<ipoib::OwnAddress> ipoib_addresses(const subnet::Topology& topology,
                                               subnet::PortRef port) {
  std::uint32_t hca_number = 1;
  for (std::uint32_t node = 0; node < port.node; ++node) {
    if (topology.nodes[node].is_hca()) ++hca_number;
  }
  if (hca_number > kHostsMax) return {};
  const std::uint32_t link = port.port - 1u;
  Gid ipv6{};
  ipv6.bytes[0] = std::byte{0xfd};
  ipv6.bytes[7] = static_cast<std::byte>(link);
  ipv6.bytes[14] = static_cast<std::byte>(hca_number >> 8);
  ipv6.bytes[15] = static_cast<std::byte>(hca_number);
  return {{wire::ipv4_gid(10u << 24 | link << 16 | hca_number), kIpv4PrefixBits},
          {ipv6, kIpv6PrefixBits}};
}

}  // namespace verbena::hosts
