#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "subnet/device.h"
#include "subnet/topology.h"

namespace verbena::subnet {

// Trains the links between ports.  A link is up if its cable is plugged, both nodes have power,
// both ports may train (neither sleeps nor is disabled), and both have a width and a speed in
// common. Training takes no time: both ports are then in the state Init.
class Links {
 public:
  // REQUIRES: the topology and the devices outlive this object, and problem(topology) is nothing.
  Links(const Topology& topology, std::vector<Device>& devices);

  // Returns the port at the other end of an up link.
  std::optional<PortRef> peer(PortRef port) const;

  // These append the ports whose state has changed.
  void plug(std::size_t link, bool plugged, std::vector<PortRef>& changed);
  // A node that is switched on has lost all settings, except that managers still hold its ports.
  void set_power(std::uint32_t node, bool on, std::vector<PortRef>& changed);
  bool has_power(std::uint32_t node) const { return powered_[node]; }
  // Takes a port's link down.  With kPolling it trains again at once.
  void change(PortRef port, wire::PortPhysicalState to, std::vector<PortRef>& changed);
  // Trains the link again with this MTU as the largest one of both ports.
  void set_mtu(std::size_t link, Mtu mtu, std::vector<PortRef>& changed);
  // Returns the place of the cable at a port.  REQUIRES: there is one.
  std::uint32_t link_of(PortRef port) const { return links_[port.node][port.port]; }

 private:
  static constexpr std::uint32_t kNoLink = 0xffffffff;

  DevicePort& at(PortRef port) const { return devices_[port.node].ports[port.port]; }
  void set_limits(PortRef end, std::size_t link);
  bool can_train(std::size_t link) const;
  void train(std::size_t link, std::vector<PortRef>& changed);
  void take_down(std::size_t link, std::vector<PortRef>& changed);
  void set_down(PortRef port, std::vector<PortRef>& changed);

  const Topology& topology_;
  std::vector<Device>& devices_;
  std::vector<std::vector<std::uint32_t>> links_{};  // by node and port
  std::vector<bool> plugged_{};
  std::vector<bool> powered_{};
  std::vector<bool> up_{};
  std::map<std::size_t, Mtu> mtus_{};  // of links whose MTU differs from the topology
};

}  // namespace verbena::subnet
