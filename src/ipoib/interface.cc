#include "ipoib/interface.h"

#include <bit>
#include <cstddef>

#include "wire/ip.h"
#include "wire/loopback.h"

namespace verbena::ipoib {
namespace {

// Returns the length of the prefix that two addresses have in common.
unsigned common_bits(const Gid& a, const Gid& b) {
  unsigned bits = 0;
  for (std::size_t i = 0; i < a.bytes.size(); ++i) {
    const auto difference = std::to_integer<std::uint8_t>(a.bytes[i] ^ b.bytes[i]);
    bits += static_cast<unsigned>(std::countl_zero(difference));
    if (difference != 0) break;
  }
  return bits;
}

// Returns true for the first and the last IPv4 address of a link, which no host can have.  On links
// with a prefix of 31 or 32 bits, hosts can have these addresses (RFC 3021).
bool is_ipv4_broadcast(const Gid& ip, unsigned prefix_bits) {
  if (!wire::is_ipv4(ip) || prefix_bits >= 31) return false;
  const std::uint32_t host_bits = ~std::uint32_t{0} >> prefix_bits;
  const std::uint32_t host_part = wire::ipv4_address(ip) & host_bits;
  return host_part == 0 || host_part == host_bits;
}

LinkAddress group_address(const Gid& mgid) { return {.gid = mgid, .qpn = wire::kMulticastQpn}; }

}  // namespace

bool is_host_address(const Gid& ip) {
  return ip != Gid{} && ip != wire::kLoopbackIpv6 && !wire::is_loopback_ipv4(ip) &&
         !wire::is_multicast(ip) && ip != wire::ipv4_gid(0) && ip != wire::ipv4_gid(0xffffffff);
}

std::optional<Gid> Interface::source_for(const Gid& ip) const {
  if (!is_host_address(ip)) return std::nullopt;
  std::optional<Gid> best;
  unsigned best_bits = 0;
  for (const OwnAddress& own : addresses) {
    const bool is_ipv4 = wire::is_ipv4(own.ip);
    const unsigned bits = own.prefix_bits + (is_ipv4 ? 96u : 0u);
    const bool is_on_link = is_ipv4 == wire::is_ipv4(ip) && common_bits(own.ip, ip) >= bits &&
                            !is_ipv4_broadcast(ip, own.prefix_bits);
    if (!is_on_link || (best && bits <= best_bits)) continue;
    best = own.ip;
    best_bits = bits;
  }
  return best;
}

std::vector<Gid> Interface::groups() const {
  std::vector<Gid> mgids{broadcast_group()};
  const auto add = [&](const Gid& group) {
    const Gid group_mgid = mgid(group);
    if (std::ranges::find(mgids, group_mgid) == mgids.end()) mgids.push_back(group_mgid);
  };
  for (const OwnAddress& own : addresses) {
    if (wire::is_ipv4(own.ip)) continue;
    add(wire::kAllNodes);
    add(wire::solicited_node_group(own.ip));
  }
  return mgids;
}

SendFrame make_request(const Interface& interface, const Gid& ip, const LinkAddress* neighbour) {
  const Gid source = *interface.source_for(ip);
  if (wire::is_ipv4(ip)) {
    const wire::IpoibArp arp{.operation = wire::ArpOperation::kRequest,
                             .sender = interface.wire_address(),
                             .sender_ip = wire::ipv4_address(source),
                             .target_ip = wire::ipv4_address(ip)};
    return {.to = neighbour != nullptr ? *neighbour : group_address(interface.broadcast_group()),
            .frame = wire::write_ipoib_frame(arp)};
  }
  const Gid group = wire::solicited_node_group(ip);
  const wire::NeighbourSolicitation message{.source = source,
                                            .destination = neighbour != nullptr ? ip : group,
                                            .target = ip,
                                            .source_link_address = interface.wire_address()};
  return {.to = neighbour != nullptr ? *neighbour : group_address(interface.mgid(group)),
          .frame = wire::write_ipoib_frame(message)};
}

SendFrame make_announcement(const Interface& interface, const Gid& own_ip) {
  if (wire::is_ipv4(own_ip)) {
    const wire::IpoibArp arp{.operation = wire::ArpOperation::kRequest,
                             .sender = interface.wire_address(),
                             .sender_ip = wire::ipv4_address(own_ip),
                             .target_ip = wire::ipv4_address(own_ip)};
    return {.to = group_address(interface.broadcast_group()),
            .frame = wire::write_ipoib_frame(arp)};
  }
  const wire::NeighbourAdvertisement message{.source = own_ip,
                                             .destination = wire::kAllNodes,
                                             .target = own_ip,
                                             .override_cache = true,
                                             .target_link_address = interface.wire_address()};
  return {.to = group_address(interface.mgid(wire::kAllNodes)),
          .frame = wire::write_ipoib_frame(message)};
}

}  // namespace verbena::ipoib
