#include "hosts/breakables.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "subnet/check_fault.h"
#include "subnet/find_link.h"

namespace verbena::hosts {
namespace {

template <class T>
using Answer = Breakable::Answer<T>;

// A Breakable::Link of an Ethernet fabric contains the device in these lowest bits, and the host
// above them.
constexpr unsigned kDeviceBits = 8;

std::string missing_pkey_text(const std::string& name, Pkey pkey) {
  return fmt::format("node {} has no P_Key 0x{:04x}", name, pkey.value);
}

std::string full_table_text(const std::string& name) {
  return fmt::format("the P_Key table of node {} is full", name);
}

}  // namespace

// ---- InfiniBand ---------------------------------------------------------------------------------

std::optional<std::string> BreakableSubnet::problem_with(const faults::Fault& fault) const {
  return subnet::problem_with(topology(), fault);
}

Breakable::Link BreakableSubnet::find_link(const std::string& a, const std::string& b) const {
  return *subnet::find_link(topology(), a, b);
}

Breakable::Node BreakableSubnet::find_node(const std::string& name) const {
  return *subnet::find_node(topology(), name);
}

std::string BreakableSubnet::link_text(Link link) const {
  return subnet::link_text(topology(), link);
}

std::string BreakableSubnet::node_name(Node node) const { return topology().nodes[node].name; }

std::string BreakableSubnet::up_text(Link link) const {
  return nodes_.subnet().link_is_up(link)
             ? "is up"
             : "has a cable, but is not up: a node is off, or a port is disabled";
}

void BreakableSubnet::set_mtu(Link link, std::uint32_t bytes) {
  nodes_.set_mtu(link, subnet::mtu_of_bytes(bytes));
}

Answer<void> BreakableSubnet::set_pkey(Node node, Pkey pkey, bool present) {
  const subnet::Node& hca = topology().nodes[node];
  bool succeeded = false;  // at one or more ports
  for (std::uint8_t port = 1; port <= hca.ports; ++port) {
    succeeded |= nodes_.set_pkey({.node = node, .port = port}, pkey, present);
  }
  if (succeeded) return {};
  return std::unexpected(present ? full_table_text(hca.name) : missing_pkey_text(hca.name, pkey));
}

bool BreakableSubnet::has_pkey(Node node, Pkey pkey) const {
  for (std::uint8_t port = 1; port <= topology().nodes[node].ports; ++port) {
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

std::uint8_t BreakableHosts::rail_count(Node node) const {
  return static_cast<std::uint8_t>(network_.fabric().hosts[node].rails.size());
}

std::optional<std::string> BreakableHosts::problem_with(const faults::Fault& fault) const {
  return plan::problem_with(network_.fabric(), fault);
}

Breakable::Link BreakableHosts::find_link(const std::string& a, const std::string& b) const {
  const auto rail = *plan::find_link(network_.fabric(), a, b);
  return Link{rail.host} << kDeviceBits | rail.device;
}

Breakable::Node BreakableHosts::find_node(const std::string& name) const {
  return *plan::find_host(network_.fabric(), name);
}

void BreakableHosts::set_link(Link link, bool up) {
  network_.faults().set_link(rail_of(link), up);
  on_change_(rail_of(link).host);
}

std::string BreakableHosts::up_text(Link link) const {
  return network_.faults().is_up(rail_of(link)) ? "is up" : "has a cable, but its host is off";
}

void BreakableHosts::set_loss(Link link, const faults::Loss& loss) {
  network_.faults().set_loss(rail_of(link), loss);
}

void BreakableHosts::set_delay(Link link, Duration delay) {
  network_.faults().set_delay(rail_of(link), delay);
}

void BreakableHosts::set_mtu(Link link, std::uint32_t bytes) {
  network_.faults().set_mtu(rail_of(link), bytes == 0 ? std::nullopt : std::optional(bytes));
  on_change_(rail_of(link).host);
}

void BreakableHosts::set_power(Node node, bool on) {
  network_.faults().set_host(node, on);
  on_change_(node);
}

void BreakableHosts::set_paused(Node node, bool paused) {
  network_.faults().set_paused(node, paused);
}

Answer<void> BreakableHosts::set_pkey(Node node, Pkey pkey, bool present) {
  bool succeeded = false;  // at one or more ports
  for (std::uint8_t device = 0; device < rail_count(node); ++device) {
    const ethernet::RailId rail{.host = node, .device = device};
    std::vector<Pkey> pkeys = network_.pkeys(rail);
    const bool was_present = std::ranges::find(pkeys, pkey) != pkeys.end();
    succeeded |= was_present && present;  // adding a P_Key that the table already has succeeds
    if (was_present == present) continue;
    // The indexes of the other P_Keys must not change, because programs use these indexes.
    const auto entry = std::ranges::find(pkeys, present ? Pkey{} : pkey);
    if (entry != pkeys.end()) {
      *entry = present ? pkey : Pkey{};
    } else if (pkeys.size() < plan::kPkeysMax) {
      pkeys.push_back(pkey);
    } else {
      continue;
    }
    network_.faults().set_pkeys(rail, std::move(pkeys));
    succeeded = true;
  }
  if (!succeeded) {
    return std::unexpected(present ? full_table_text(node_name(node))
                                   : missing_pkey_text(node_name(node), pkey));
  }
  on_change_(node);
  return {};
}

bool BreakableHosts::has_pkey(Node node, Pkey pkey) const {
  for (std::uint8_t device = 0; device < rail_count(node); ++device) {
    const auto& pkeys = network_.pkeys({.host = node, .device = device});
    if (std::ranges::find(pkeys, pkey) != pkeys.end()) return true;
  }
  return false;
}

}  // namespace verbena::hosts
