#include "ethernet/network.h"

#include <algorithm>
#include <utility>

#include "wire/address_text.h"
#include "wire/ip.h"
#include "wire/loopback.h"

namespace verbena::ethernet {

Network::Network(plan::Fabric fabric) : fabric_(std::move(fabric)) {
  for (HostIndex host = 0; host < fabric_.hosts.size(); ++host) {
    std::uint8_t device = 0;
    for (const plan::Rail& rail : fabric_.hosts[host].rails) {
      for (const Gid& address : rail.addresses) rail_of_address_[address] = {host, device};
      ++device;
    }
  }
}

std::vector<node::HostAddress> Network::addresses(HostIndex host) const {
  std::vector<node::HostAddress> all;
  std::uint8_t device = 0;
  for (const plan::Rail& rail : fabric_.hosts[host].rails) {
    for (const Gid& address : rail.addresses) {
      all.push_back({.port = {.device = device, .number = 1},
                     .gid = address,
                     .interface = interface_of(device),
                     .interface_name = rail.device,
                     .mtu_bytes = mtu_bytes({.host = host, .device = device}),
                     .default_route = device == 0});
    }
    ++device;
  }
  for (const Gid& address : {wire::kLoopbackIpv4, wire::kLoopbackIpv6}) {
    all.push_back({.gid = address,
                   .interface = kLoopbackInterface,
                   .interface_name = "lo",
                   .mtu_bytes = kLoopbackMtu,
                   .loopback = true});
  }
  return all;
}

bool Network::is_loopback(const Gid& address) {
  return address == wire::kLoopbackIpv4 || address == wire::kLoopbackIpv6;
}

std::optional<RailId> Network::rail_of(HostIndex host, const Gid& address) const {
  if (is_loopback(address)) return RailId{host, 0};
  const auto found = rail_of_address_.find(address);
  if (found == rail_of_address_.end() || found->second.host != host) return std::nullopt;
  return found->second;
}

bool Network::are_on_same_vlan(RailId a, RailId b) const {
  return rail(a).network == rail(b).network && rail(a).vlan == rail(b).vlan;
}

bool Network::can_reach(RailId a, RailId b) const {
  if (a.host == b.host || are_on_same_vlan(a, b)) return true;
  if (rail(a).vlan != rail(b).vlan) return false;
  const auto joins = [](const plan::Router& router, const std::string& network) {
    return std::ranges::find(router.networks, network) != router.networks.end();
  };
  return std::ranges::any_of(fabric_.routers, [&](const plan::Router& router) {
    return joins(router, rail(a).network) && joins(router, rail(b).network);
  });
}

std::expected<Network::Route, std::string> Network::route(HostIndex host, const Gid& destination,
                                                          const std::optional<Gid>& source) const {
  const std::string& name = fabric_.hosts[host].name;
  if (source && !rail_of(host, *source)) {
    return std::unexpected("the host " + name + " has no address " + wire::address_text(*source));
  }
  const auto own_rail = rail_of(host, destination);
  // As on Linux, a packet to its own host uses loopback.  Its default source address is its
  // destination address.
  if (own_rail) {
    return Route{.source = source.value_or(destination),
                 .interface = is_loopback(source.value_or(destination))
                                  ? kLoopbackInterface
                                  : interface_of(own_rail->device),
                 .mtu_bytes = kLoopbackMtu,
                 .loopback = true};
  }
  const bool is_to_group = wire::is_multicast(destination);
  const auto peer = rail_of_address_.find(destination);
  if (!is_to_group && peer == rail_of_address_.end()) {
    return std::unexpected("no host of the fabric has the address " +
                           wire::address_text(destination));
  }
  std::string reasons;
  const auto devices = static_cast<std::uint8_t>(fabric_.hosts[host].rails.size());
  for (std::uint8_t device = 0; device < devices; ++device) {
    const RailId from{host, device};
    const RailId to = is_to_group ? from : peer->second;
    if (source && rail_of(host, *source) != from) continue;
    if (!can_reach(from, to)) {
      reasons += (reasons.empty() ? "" : "; ") + unreachable_text(from, to);
      continue;
    }
    if (!faults_.is_up(from) || !faults_.is_up(to)) {
      reasons += (reasons.empty() ? "" : "; ") + down_text(faults_.is_up(from) ? to : from);
      continue;
    }
    const auto has_same_ip_version = [&](const Gid& address) {
      return wire::is_ipv4(address) == wire::is_ipv4(destination);
    };
    const auto& addresses = rail(from).addresses;
    const auto own_address = source ? std::ranges::find(addresses, *source)
                                    : std::ranges::find_if(addresses, has_same_ip_version);
    if (own_address == addresses.end() || !has_same_ip_version(*own_address)) {
      reasons += (reasons.empty() ? "" : "; ") + rail_text(from) + " has no " +
                 (wire::is_ipv4(destination) ? "IPv4" : "IPv6") + " address";
      continue;
    }
    return Route{.source = *own_address,
                 .interface = interface_of(device),
                 .mtu_bytes = std::min(mtu_bytes(from), mtu_bytes(to))};
  }
  return std::unexpected("no route to " + wire::address_text(destination) + ": " + reasons);
}

std::expected<RailId, Network::Drop> Network::forward(HostIndex host, const Gid& source,
                                                      const Gid& destination,
                                                      std::size_t ip_bytes) {
  const auto from = rail_of(host, source);
  if (!from) return std::unexpected(Drop::kForeignSource);
  if (const auto own = rail_of(host, destination)) return *own;
  const auto peer = rail_of_address_.find(destination);
  if (peer == rail_of_address_.end()) return std::unexpected(Drop::kNoSuchAddress);
  if (is_loopback(source) || !can_reach(*from, peer->second))
    return std::unexpected(Drop::kNoRoute);
  if (ip_bytes > std::min(mtu_bytes(*from), mtu_bytes(peer->second))) {
    return std::unexpected(Drop::kTooLong);
  }
  if (!faults_.is_up(*from) || !faults_.is_up(peer->second)) {
    return std::unexpected(Drop::kLinkDown);
  }
  if (faults_.should_drop_next(*from) || faults_.should_drop_next(peer->second)) {
    return std::unexpected(Drop::kLost);
  }
  return peer->second;
}

std::string Network::rail_text(RailId id) const {
  const plan::Rail& rail_plan = rail(id);
  std::string text = "rail " + rail_plan.device + " of host " + fabric_.hosts[id.host].name +
                     " (network " + rail_plan.network;
  if (rail_plan.vlan != 0) text += ", VLAN " + std::to_string(rail_plan.vlan);
  return text + ", MTU " + std::to_string(mtu_bytes(id)) + ")";
}

std::string Network::unreachable_text(RailId from, RailId to) const {
  return rail_text(from) + " does not reach " + rail_text(to);
}

std::string Network::down_text(RailId id) const {
  return rail_text(id) + " is down: " + *down_reason(id);
}

std::string Network::reason(Drop drop, HostIndex host, const Gid& source, const Gid& destination,
                            std::size_t ip_bytes) const {
  const auto from = rail_of(host, source);
  const auto peer = rail_of_address_.find(destination);
  if (drop == Drop::kForeignSource || !from) {
    return wire::address_text(source) + " is not an address of host " + fabric_.hosts[host].name;
  }
  if (drop == Drop::kNoSuchAddress || peer == rail_of_address_.end()) {
    return "no host of the fabric has the address " + wire::address_text(destination);
  }
  if (drop == Drop::kNoRoute) {
    return is_loopback(source) ? "loopback of host " + fabric_.hosts[host].name +
                                     " does not reach " + rail_text(peer->second)
                               : unreachable_text(*from, peer->second);
  }
  if (drop == Drop::kLinkDown) return down_text(faults_.is_up(*from) ? peer->second : *from);
  if (drop == Drop::kLost) {
    const bool is_own_link = faults_.loss(*from) != Loss{};
    return rail_text(is_own_link ? *from : peer->second) +
           " loses packets because of 'verbena fabric fault'";
  }
  return "packets of " + std::to_string(ip_bytes) + " bytes are too long for the route from " +
         rail_text(*from) + " to " + rail_text(peer->second);
}

std::optional<Network::LinkUse> Network::link_use(HostIndex host, const Gid& source,
                                                  const Gid& destination) const {
  const auto from = rail_of(host, source);
  if (!from) return std::nullopt;
  return LinkUse{.rail = *from, .stays = is_loopback(source) || rail_of(host, destination)};
}

bool Network::set_members(HostIndex host, std::uint16_t range, const Gid& group,
                          std::span<const std::uint32_t> interfaces) {
  if (!groups_.contains(group)) {
    if (interfaces.empty()) return true;
    if (groups_.size() == kGroupsMax) return false;
  }
  std::set<Member>& members = groups_[group];
  std::erase_if(members, [&](const Member& member) {
    return member.rail.host == host && member.range == range;
  });
  bool has_space = true;
  for (const std::uint32_t interface : interfaces) {
    const std::uint32_t device = interface - interface_of(0);
    if (interface < interface_of(0) || device >= fabric_.hosts[host].rails.size()) continue;
    has_space = has_space && members.size() < kMembersMax;
    if (has_space) members.insert({{host, static_cast<std::uint8_t>(device)}, range});
  }
  if (members.empty()) groups_.erase(group);
  return has_space;
}

std::size_t Network::members() const {
  std::size_t members = 0;
  for (const auto& [group, group_members] : groups_) members += group_members.size();
  return members;
}

std::vector<Network::Member> Network::receivers(HostIndex host, const Gid& source, const Gid& group,
                                                std::size_t ip_bytes) {
  const auto from = rail_of(host, source);
  const auto found = groups_.find(group);
  if (!from || found == groups_.end() || ip_bytes > mtu_bytes(*from)) return {};
  // A packet to a member on the same rail uses no link, so link faults do not affect it.
  const bool leaves_host =
      !is_loopback(source) && faults_.is_up(*from) && !faults_.should_drop_next(*from);
  std::vector<Member> all;
  for (const Member& member : found->second) {
    if (!are_on_same_vlan(*from, member.rail) || ip_bytes > mtu_bytes(member.rail)) continue;
    const bool arrives = member.rail == *from || (leaves_host && faults_.is_up(member.rail) &&
                                                  !faults_.should_drop_next(member.rail));
    if (arrives) all.push_back(member);
  }
  return all;
}

// ---- faults -------------------------------------------------------------------------------------

std::uint32_t Network::mtu_bytes(RailId id) const {
  return faults_.mtu_bytes(id).value_or(rail(id).mtu_bytes);
}

const std::vector<Pkey>& Network::pkeys(RailId id) const {
  const std::vector<Pkey>* const fault_pkeys = faults_.pkeys(id);
  return fault_pkeys == nullptr ? rail(id).pkeys : *fault_pkeys;
}

std::optional<std::string> Network::down_reason(RailId rail) const {
  if (faults_.is_off(rail.host)) {
    return "host " + fabric_.hosts[rail.host].name + " is off because of 'verbena fabric fault'";
  }
  if (faults_.link_is_pulled(rail)) return "its link is down because of 'verbena fabric fault'";
  return std::nullopt;
}

}  // namespace verbena::ethernet
