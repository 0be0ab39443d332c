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
  std::deque<std::size_t> next{node};
  hops[node] = 0;
  while (!next.empty()) {
    const std::size_t current = next.front();
    next.pop_front();
    if (current != node && !nodes_[current].is_switch) continue;
    for (const auto& [number, port] : nodes_[current].ports) {
      if (!port.neighbor || hops[port.neighbor->node] != kUnreachable) continue;
      hops[port.neighbor->node] = static_cast<std::uint16_t>(hops[current] + 1);
      next.push_back(port.neighbor->node);
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
  std::uint16_t last = 0;
  for (const Node& node : nodes_) last = std::max(last, node.lid.value);
  std::vector<std::uint8_t> ports_of_lids(last + std::size_t{1}, wire::kLftNoPort);
  for (std::size_t to = 0; to < nodes_.size(); ++to) {
    if (!reaches(switch_node, to)) continue;
    std::vector<std::uint8_t> nearest;
    for (const auto& [number, port] : nodes_[switch_node].ports) {
      if (!port.neighbor) continue;
      const std::size_t next = port.neighbor->node;
      const bool forwards = nodes_[next].is_switch || next == to;
      if (forwards && hops_[to][next] + 1 == hops_[to][switch_node]) nearest.push_back(number);
    }
    const std::uint16_t lid = nodes_[to].lid.value;
    if (to == switch_node) nearest = {0};
    if (!nearest.empty()) ports_of_lids[lid] = nearest[lid % nearest.size()];
  }
  return ports_of_lids;
}

}  // namespace verbena::subnet
