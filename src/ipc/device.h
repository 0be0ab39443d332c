#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/link_layer.h"
#include "base/port_id.h"
#include "base/strong.h"
#include "wire/bth.h"
#include "wire/ip.h"

// Describes the devices of a host, as the agent reports them to programs.
namespace verbena::ipc {

// Describes one entry of a port's GID table.  The index of an entry does not change while the agent
// runs.
struct GidEntry {
  Gid gid{};
  std::uint32_t interface = 0;
  std::uint32_t index = 0;
  std::uint32_t mtu_bytes = 0;  // the MTU of the interface
  bool loopback = false;
  void fields(auto& a) { a(gid, interface, index, mtu_bytes, loopback); }
};

// Holds the values of PortInfo about an InfiniBand port's link (vol1 14.2.5.6).  The numbers are
// those of ibv_port_attr.
struct InfinibandLink {
  std::uint8_t state = 1;           // enum ibv_port_state
  std::uint8_t physical_state = 2;  // Polling
  std::uint8_t max_mtu = 5;         // enum ibv_mtu
  std::uint8_t width = 2;           // 4x
  std::uint16_t speed = 1;          // SDR
  std::uint8_t virtual_lanes = 1;   // a code, as in PortInfo.VLCap
  std::uint8_t subnet_timeout = 0;  // a timeout code
  std::uint32_t capability_mask = 0;
  std::uint32_t reregistrations = 0;  // requests of the subnet manager for reregistration so far
  friend bool operator==(const InfinibandLink&, const InfinibandLink&) = default;
  void fields(auto& a) {
    a(state, physical_state, max_mtu, width, speed, virtual_lanes, subnet_timeout, capability_mask,
      reregistrations);
  }
};

// Describes which hosts the programs of a host reach by UDP.
struct Reach {
  std::uint16_t udp_port = wire::kRoceUdpPort;
  // Empty if the programs reach other hosts.  Otherwise this is the reason why they use another UDP
  // port and reach only programs of this host, for example the name of the process that has port
  // 4791.
  std::string why_only_this_host{};
  // The kernel's routes are those of the agent, so a program may ask the kernel itself.
  bool uses_kernel_routes = false;
  void fields(auto& a) { a(udp_port, why_only_this_host, uses_kernel_routes); }
  friend bool operator==(const Reach&, const Reach&) = default;
};

// Describes a port of a device.
struct Port {
  static constexpr std::uint32_t kGidsMax = 256;
  static constexpr std::uint32_t kPkeysMax = 128;
  static constexpr std::uint8_t kLmcMax = 7;
  LinkLayer link_layer = LinkLayer::kEthernet;
  bool active = false;
  std::uint8_t active_mtu = 0;           // enum ibv_mtu
  std::string down_reason{};             // the reason why the port is not active
  Reach reach{};                         // Ethernet only
  std::uint32_t gid_indexes = kGidsMax;  // the length of the GID table, empty entries included
  std::vector<GidEntry> gids{};
  std::vector<Pkey> pkeys{wire::kDefaultPkey};
  // Only InfiniBand uses the next members.  The port has 2^lmc LIDs, from `lid` on.
  Lid lid{};
  std::uint8_t lmc = 0;
  Lid sm_lid{};
  std::uint8_t sm_sl = 0;
  InfinibandLink link{};
  void fields(auto& a) {
    a(link_layer, active, active_mtu, down_reason, reach, gid_indexes, gids, pkeys, lid, lmc,
      sm_lid, sm_sl, link);
  }
};

// Describes a device.  The port with number n is ports[n - 1].
struct Device {
  std::string name{"verbena0"};
  std::string description{"verbena"};  // the NodeDescription
  Guid node_guid{};
  std::vector<Port> ports{Port{}};
  void fields(auto& a) { a(name, description, node_guid, ports); }
};

// Limits the GIDs of all ports of a host, because one message carries them all.
inline constexpr std::uint32_t kGidsOfHostMax = 1024;

// Fails with kMalformed if the list is invalid.  A host has 1 to kDevicesMax devices with 1 to
// kPortsPerDeviceMax ports, and each port has 1 to kPkeysMax P_Keys and an LMC of at most kLmcMax.
Result<void> check_devices(const std::vector<Device>& devices);
// Returns null if there is no such port.
const Port* find_port(const std::vector<Device>& devices, PortId port);

}  // namespace verbena::ipc
