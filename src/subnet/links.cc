#include "subnet/links.h"

#include <array>

namespace verbena::subnet {

using wire::PortPhysicalState;
using wire::PortState;

Links::Links(const Topology& topology, std::vector<Device>& devices)
    : topology_(topology),
      devices_(devices),
      plugged_(topology.links.size(), true),
      powered_(topology.nodes.size(), true),
      up_(topology.links.size(), false) {
  for (const Node& node : topology.nodes) links_.emplace_back(node.ports + std::size_t{1}, kNoLink);
  std::vector<PortRef> changed;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Link& link = topology.links[i];
    for (const PortRef end : {link.a, link.b}) {
      links_[end.node][end.port] = static_cast<std::uint32_t>(i);
      set_supported(at(end).info, link);
    }
    train(i, changed);
  }
}

std::optional<PortRef> Links::peer(PortRef port) const {
  const std::uint32_t link = link_of(port);
  if (link == kNoLink || !up_[link]) return std::nullopt;
  const Link& ends = topology_.links[link];
  return ends.a == port ? ends.b : ends.a;
}

LinkSpeed Links::active_speed(PortRef port) const {
  const LinkSpeed shown = subnet::active_speed(at(port).info);
  if (link_of(port) == kNoLink) return shown;
  const LinkSpeed fastest = topology_.links[link_of(port)].speed;
  return shown == speed_in_port_info(fastest) ? fastest : shown;
}

void Links::set_plugged(std::size_t link, bool plugged, std::vector<PortRef>& changed) {
  plugged_[link] = plugged;
  if (plugged) {
    train(link, changed);
  } else {
    take_down(link, changed);
  }
}

void Links::set_power(std::uint32_t node, bool on, std::vector<PortRef>& changed) {
  if (powered_[node] == on) return;
  powered_[node] = on;
  if (on) {
    Device new_device(topology_.nodes[node]);
    for (std::size_t port = 0; port < new_device.ports.size(); ++port) {
      new_device.ports[port].info.capability_mask |=
          devices_[node].ports[port].info.capability_mask & wire::port_capability::kIsSm;
    }
    devices_[node] = std::move(new_device);
  }
  for (std::size_t port = 1; port < links_[node].size(); ++port) {
    const std::uint32_t link = links_[node][port];
    if (link == kNoLink) continue;
    if (on) {
      set_limits({node, static_cast<std::uint8_t>(port)}, link);
      train(link, changed);
    } else {
      take_down(link, changed);
    }
  }
}

void Links::set_physical_state(PortRef port, PortPhysicalState state,
                               std::vector<PortRef>& changed) {
  const std::uint32_t link = link_of(port);
  if (link != kNoLink) take_down(link, changed);
  at(port).info.port_physical_state = state;
  if (link != kNoLink) train(link, changed);
}

void Links::set_limits(PortRef end, std::size_t link) {
  wire::PortInfo& info = at(end).info;
  set_supported(info, topology_.links[link]);
  if (const auto mtu = mtus_.find(link); mtu != mtus_.end()) {
    info.mtu_cap = info.neighbor_mtu = static_cast<std::uint8_t>(mtu->second);
  }
}

void Links::set_mtu(std::size_t link, Mtu mtu, std::vector<PortRef>& changed) {
  take_down(link, changed);
  mtus_[link] = mtu;
  if (mtu == topology_.links[link].mtu) mtus_.erase(link);
  for (const PortRef end : {topology_.links[link].a, topology_.links[link].b}) {
    wire::PortInfo& info = at(end).info;
    info.mtu_cap = info.neighbor_mtu = static_cast<std::uint8_t>(mtu);
  }
  train(link, changed);
}

bool Links::can_train(std::size_t link) const {
  const auto may_train = [&](PortRef end) {
    return powered_[end.node] && at(end).info.port_physical_state == PortPhysicalState::kPolling;
  };
  const Link& ends = topology_.links[link];
  return plugged_[link] && may_train(ends.a) && may_train(ends.b);
}

void Links::train(std::size_t link, std::vector<PortRef>& changed) {
  const Link& ends = topology_.links[link];
  if (up_[link] || !can_train(link) || !negotiate(at(ends.a).info, at(ends.b).info)) return;
  up_[link] = true;
  for (const PortRef end : {ends.a, ends.b}) {
    at(end).info.port_state = PortState::kInit;
    at(end).info.port_physical_state = PortPhysicalState::kLinkUp;
    changed.push_back(end);
  }
}

void Links::take_down(std::size_t link, std::vector<PortRef>& changed) {
  if (!up_[link]) return;
  up_[link] = false;
  for (const PortRef end : {topology_.links[link].a, topology_.links[link].b}) {
    set_down(end, changed);
  }
}

void Links::set_down(PortRef port, std::vector<PortRef>& changed) {
  wire::PortInfo& info = at(port).info;
  info.port_state = PortState::kDown;
  info.port_physical_state = PortPhysicalState::kPolling;
  at(port).counts.add(Count::kLinkDowned);
  changed.push_back(port);
}

}  // namespace verbena::subnet
