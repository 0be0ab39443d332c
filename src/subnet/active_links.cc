#include "subnet/active_links.h"

#include <algorithm>
#include <map>

namespace verbena::subnet {

ActiveLinks::ActiveLinks(const Subnet& subnet, std::span<const PortRef> manager_ports)
    : subnet_(subnet) {
  const Topology& topology = subnet.topology();
  std::map<PortRef, std::size_t> link_at;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    link_at[topology.links[i].a] = i;
    link_at[topology.links[i].b] = i;
  }
  std::vector<bool> is_reachable(topology.links.size());
  std::vector<PortRef> to_visit(manager_ports.begin(), manager_ports.end());
  while (!to_visit.empty()) {
    const PortRef port = to_visit.back();
    to_visit.pop_back();
    const auto found = link_at.find(port);
    if (found == link_at.end() || is_reachable[found->second]) continue;
    is_reachable[found->second] = true;
    const Link& link = topology.links[found->second];
    const std::uint32_t other = link.a == port ? link.b.node : link.a.node;
    if (!topology.nodes[other].is_switch()) continue;  // an HCA does not forward SMPs
    for (unsigned number = 1; number <= topology.nodes[other].ports; ++number) {
      to_visit.push_back({.node = other, .port = static_cast<std::uint8_t>(number)});
    }
  }
  for (std::size_t i = 0; i < is_reachable.size(); ++i) {
    if (is_reachable[i]) links_.push_back(i);
  }
}

bool ActiveLinks::is_active_or_down(std::size_t link) const {
  const Link& ends = subnet_.topology().links[link];
  return !subnet_.link_is_up(link) || (subnet_.state(ends.a) == PortState::kActive &&
                                       subnet_.state(ends.b) == PortState::kActive);
}

bool ActiveLinks::are_all_active() {
  while (first_inactive_ < links_.size() && is_active_or_down(links_[first_inactive_]))
    ++first_inactive_;
  if (first_inactive_ < links_.size()) return false;
  const auto inactive = std::ranges::find_if_not(
      links_, [this](std::size_t link) { return is_active_or_down(link); });
  first_inactive_ = static_cast<std::size_t>(inactive - links_.begin());
  return inactive == links_.end();
}

std::vector<PortRef> ActiveLinks::hca_ports() const {
  std::vector<PortRef> ports;
  for (const std::size_t link : links_) {
    const Link& ends = subnet_.topology().links[link];
    for (const PortRef port : {ends.a, ends.b}) {
      if (subnet_.topology().nodes[port.node].is_hca()) ports.push_back(port);
    }
  }
  return ports;
}

std::vector<PortRef> ActiveLinks::inactive_ports(std::size_t limit) const {
  std::vector<PortRef> ports;
  for (const std::size_t link : links_) {
    if (!subnet_.link_is_up(link)) continue;
    const Link& ends = subnet_.topology().links[link];
    for (const PortRef port : {ends.a, ends.b}) {
      if (ports.size() < limit && subnet_.state(port) != PortState::kActive) ports.push_back(port);
    }
  }
  return ports;
}

}  // namespace verbena::subnet
