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
// both ports may train (neither sleeps nor is disabled), and the ports have a width and a speed in
// common.  Training takes no time: both ports are in the state Init at once.
class Links {
 public:
  // REQUIRES: the topology and the devices outlive this object; find_problem(topology) returns
  // nothing.
  Links(const Topology& topology, std::vector<Device>& devices);

  // Returns the port at the other end of the link; nothing if the link is not up.
  std::optional<PortRef> peer(PortRef port) const;

  // set_plugged(), set_power(), set_physical_state() and set_mtu() append the ports whose state has
  // changed to `changed`.

  // Plugs or pulls a cable.
  void set_plugged(std::size_t link, bool plugged, std::vector<PortRef>& changed);
  // Switches a node on or off.  A node that is switched on has its default settings.  Only IsSM is
  // retained, because the managers on the node still run.
  void set_power(std::uint32_t node, bool on, std::vector<PortRef>& changed);
  bool has_power(std::uint32_t node) const { return powered_[node]; }
  // Takes down the link of a port, and sets the physical state of the port.  If `state` is
  // kPolling, the link trains again at once, if it can.
  void set_physical_state(PortRef port, wire::PortPhysicalState state,
                          std::vector<PortRef>& changed);
  // Sets the largest MTU that both ports of the link support, and trains the link again.
  void set_mtu(std::size_t link, Mtu mtu, std::vector<PortRef>& changed);
  // Returns the active speed of a port, which is FDR10 or XDR if PortInfo shows the cable's speed
  // as another one.
  LinkSpeed active_speed(PortRef port) const;
  // Returns the index of the cable at a port.  REQUIRES: the port has a cable.
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
  std::vector<std::vector<std::uint32_t>> links_{};  // the cable at each port, by node and port
  std::vector<bool> plugged_{};
  std::vector<bool> powered_{};
  std::vector<bool> up_{};
  std::map<std::size_t, Mtu> mtus_{};  // the MTUs that differ from the topology's, by link
};

}  // namespace verbena::subnet
