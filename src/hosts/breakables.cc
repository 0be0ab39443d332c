#include "hosts/breakables.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "subnet/find_link.h"

namespace verbena::hosts {
namespace {

template <class T>
using Answer = Breakable::Answer<T>;

constexpr unsigned kDeviceBits = 8;

std::string no_pkey(const std::string& name, Pkey pkey) {
  return fmt::format("node {} has no P_Key 0x{:04x}", name, pkey.value);
}

std::string full_table(const std::string& name) {
  return fmt::format("the P_Key table of node {} is full", name);
}

}  // namespace

// ---- InfiniBand ---------------------------------------------------------------------------------

Answer<Breakable::Link> BreakableSubnet::find_link(const std::string& a,
                                                   const std::string& b) const {
  const auto link = subnet::find_link(topology(), a, b);
  if (!link) return std::unexpected(link.error());
  return *link;
}

Answer<Breakable::Node> BreakableSubnet::find_node(const std::string& name) const {
  return subnet::find_node(topology(), name);
}

std::string BreakableSubnet::link_text(Link link) const {
  return subnet::link_text(topology(), link);
}

std::string BreakableSubnet::node_name(Node node) const { return topology().nodes[node].name; }

std::string BreakableSubnet::up_text(Link link) const {
  return nodes_.subnet().link_is_up(link)
             ? "is up"
             : "is plugged, but does not train: a node is off, or a port is disabled";
}

Answer<void> BreakableSubnet::set_mtu(Link link, std::uint32_t bytes) {
  if (bytes == 0) {
    nodes_.set_mtu(link, std::nullopt);
    return {};
  }
  for (const auto mtu : {subnet::Mtu::k256, subnet::Mtu::k512, subnet::Mtu::k1024,
                         subnet::Mtu::k2048, subnet::Mtu::k4096}) {
    if (subnet::mtu_bytes(mtu) != bytes) continue;
    nodes_.set_mtu(link, mtu);
    return {};
  }
  return std::unexpected("the MTU of a subnet's link is 256, 512, 1024, 2048 or 4096");
}

Answer<void> BreakableSubnet::set_pkey(Node node, Pkey pkey, bool present) {
  const subnet::Node& its = topology().nodes[node];
  if (its.is_switch()) {
    return std::unexpected(fmt::format("{} is a switch, and only HCAs lose P_Keys", its.name));
  }
  bool changed = false;
  for (std::uint8_t port = 1; port <= its.ports; ++port) {
    changed |= nodes_.set_pkey({.node = node, .port = port}, pkey, present);
  }
  if (changed) return {};
  return std::unexpected(present ? full_table(its.name) : no_pkey(its.name, pkey));
}

bool BreakableSubnet::has_pkey(Node node, Pkey pkey) const {
  const subnet::Node& its = topology().nodes[node];
  for (std::uint8_t port = its.is_switch() ? 0 : 1; port <= (its.is_switch() ? 0 : its.ports);
       ++port) {
    const auto pkeys = nodes_.subnet().status({.node = node, .port = port}).pkeys;
    if (std::ranges::find(pkeys, pkey) != pkeys.end()) return true;
  }
  return false;
}

// ---- Ethernet -----------------------------------------------------------------------------------

ethernet::RailId BreakableHosts::rail_of(Link link) {
  return {.host = static_cast<ethernet::HostIndex>(link >> kDeviceBits),
          .device = static_cast<std::uint8_t>(link)};
}

std::uint8_t BreakableHosts::rails_of(Node node) const {
  return static_cast<std::uint8_t>(network_.fabric().hosts[node].rails.size());
}

Answer<Breakable::Link> BreakableHosts::find_link(const std::string& a,
                                                  const std::string& b) const {
  // The order of the two ends does not matter.
  auto rail = network_.find_rail(a, b);
  if (!rail) {
    const auto other_way = network_.find_rail(b, a);
    if (!other_way) return std::unexpected(rail.error());
    rail = other_way;
  }
  return Link{rail->host} << kDeviceBits | rail->device;
}

Answer<Breakable::Node> BreakableHosts::find_node(const std::string& name) const {
  const auto host = network_.find_host(name);
  if (!host) return std::unexpected(fmt::format("there is no host '{}'", name));
  return *host;
}

void BreakableHosts::set_link(Link link, bool up) {
  network_.faults().set_link(rail_of(link), up);
  changed_(rail_of(link).host);
}

std::string BreakableHosts::up_text(Link link) const {
  return network_.faults().is_up(rail_of(link)) ? "is up" : "is plugged, but its host is off";
}

void BreakableHosts::set_loss(Link link, const faults::Loss& loss) {
  network_.faults().set_loss(rail_of(link), loss);
}

void BreakableHosts::set_delay(Link link, Duration delay) {
  network_.faults().set_delay(rail_of(link), delay);
}

Answer<void> BreakableHosts::set_mtu(Link link, std::uint32_t bytes) {
  if (bytes != 0 && (bytes < plan::kMtuMin || bytes > plan::kMtuMax)) {
    return std::unexpected(
        fmt::format("the MTU of a rail is {} to {}", plan::kMtuMin, plan::kMtuMax));
  }
  network_.faults().set_mtu(rail_of(link), bytes == 0 ? std::nullopt : std::optional(bytes));
  changed_(rail_of(link).host);
  return {};
}

void BreakableHosts::set_power(Node node, bool on) {
  network_.faults().set_host(node, on);
  changed_(node);
}

void BreakableHosts::set_paused(Node node, bool paused) {
  network_.faults().set_paused(node, paused);
}

Answer<void> BreakableHosts::set_pkey(Node node, Pkey pkey, bool present) {
  bool changed = false;
  for (std::uint8_t device = 0; device < rails_of(node); ++device) {
    const ethernet::RailId rail{.host = node, .device = device};
    std::vector<Pkey> pkeys = network_.pkeys(rail);
    const bool has = std::ranges::find(pkeys, pkey) != pkeys.end();
    changed |= has && present;
    if (has == present) continue;
    // An entry keeps its place, because programs name a P_Key by its index.
    const auto place = std::ranges::find(pkeys, present ? Pkey{} : pkey);
    if (place != pkeys.end()) {
      *place = present ? pkey : Pkey{};
    } else if (pkeys.size() < plan::kPkeysMax) {
      pkeys.push_back(pkey);
    } else {
      continue;
    }
    network_.faults().set_pkeys(rail, std::move(pkeys));
    changed = true;
  }
  if (!changed) {
    return std::unexpected(present ? full_table(node_name(node)) : no_pkey(node_name(node), pkey));
  }
  changed_(node);
  return {};
}

bool BreakableHosts::has_pkey(Node node, Pkey pkey) const {
  for (std::uint8_t device = 0; device < rails_of(node); ++device) {
    const auto& pkeys = network_.pkeys({.host = node, .device = device});
    if (std::ranges::find(pkeys, pkey) != pkeys.end()) return true;
  }
  return false;
}

}  // namespace verbena::hosts
