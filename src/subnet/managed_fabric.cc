#include "subnet/managed_fabric.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace verbena::subnet {
namespace {

constexpr std::uint16_t kUnreachable = std::numeric_limits<std::uint16_t>::max();

}  // namespace

ManagedFabric::AddResult ManagedFabric::add(const wire::NodeInfo& info,
                                            const std::vector<std::uint8_t>& path) {
  const auto [existing, is_new] = by_guid_.emplace(info.port_guid.value, nodes_.size());
  if (!is_new) return {existing->second, false};
  const bool is_switch = info.node_type == wire::NodeType::kSwitch;
  nodes_.push_back({.is_switch = is_switch,
                    .own_port = is_switch ? std::uint8_t{0} : info.local_port_num,
                    .port_guid = info.port_guid,
                    .path = path});
  return {existing->second, true};
}

void ManagedFabric::connect(std::size_t a, std::uint8_t port_a, std::size_t b,
                            std::uint8_t port_b) {
  nodes_[a].ports[port_a].neighbor = {b, port_b};
  nodes_[b].ports[port_b].neighbor = {a, port_a};
}

// Counts the hops from each node to `node`.  Only switches forward, so a path may not lead through
// an HCA.
std::vector<std::uint16_t> ManagedFabric::hops_to(std::size_t node) const {
  std::vector<std::uint16_t> hops(nodes_.size(), kUnreachable);
  std::deque<std::size_t> to_visit{node};
  hops[node] = 0;
  while (!to_visit.empty()) {
    const std::size_t current = to_visit.front();
    to_visit.pop_front();
    if (current != node && !nodes_[current].is_switch) continue;
    for (const auto& [number, port] : nodes_[current].ports) {
      if (!port.neighbor || hops[port.neighbor->node] != kUnreachable) continue;
      hops[port.neighbor->node] = static_cast<std::uint16_t>(hops[current] + 1);
      to_visit.push_back(port.neighbor->node);
    }
  }
  return hops;
}

void ManagedFabric::count_hops() {
  hops_.clear();
  for (std::size_t node = 0; node < nodes_.size(); ++node) hops_.push_back(hops_to(node));
}

bool ManagedFabric::reaches(std::size_t from, std::size_t to) const {
  return hops_[to][from] != kUnreachable;
}

std::vector<std::uint8_t> ManagedFabric::forwarding_table(std::size_t switch_node) const {
  std::uint16_t last_lid = 0;
  for (const Node& node : nodes_) last_lid = std::max(last_lid, node.lid.value);
  std::vector<std::uint8_t> ports_of_lids(last_lid + std::size_t{1}, wire::kLftNoPort);
  for (std::size_t destination = 0; destination < nodes_.size(); ++destination) {
    if (!reaches(switch_node, destination)) continue;
    std::vector<std::uint8_t> nearest_ports;
    for (const auto& [number, port] : nodes_[switch_node].ports) {
      if (!port.neighbor) continue;
      const std::size_t next_node = port.neighbor->node;
      const bool forwards = nodes_[next_node].is_switch || next_node == destination;
      if (forwards && hops_[destination][next_node] + 1 == hops_[destination][switch_node]) {
        nearest_ports.push_back(number);
      }
    }
    const std::uint16_t lid = nodes_[destination].lid.value;
    if (destination == switch_node) nearest_ports = {0};
    if (!nearest_ports.empty()) ports_of_lids[lid] = nearest_ports[lid % nearest_ports.size()];
  }
  return ports_of_lids;
}

}  // namespace verbena::subnet
