#pragma once

#include <cstdint>
#include <optional>

#include "subnet/topology.h"

// Makes common topologies.  Hosts are HCAs named host1, host2 and so on, with one or two ports.
namespace verbena::subnet {

// Limits the hosts of one switch.
inline constexpr std::uint32_t kHostsOfSwitchMax = kSwitchPortsMax;
// Limits the hosts of a fat tree, so that a leaf switch has enough ports.
inline constexpr std::uint32_t kHostsOfFatTreeMax = 4096;

// Returns hosts at one switch.  If each host has two ports, the second ports are at a second
// switch, which is not connected to the first.  Returns nothing for 0 or too many hosts or ports.
std::optional<Topology> make_hosts(std::uint32_t host_count, std::uint8_t ports_per_host = 1);

// Returns a fat tree of two levels.  The number of spine switches equals the number of hosts of a
// leaf switch, and each leaf switch has one link to each spine switch.  Therefore no link needs to
// carry the traffic of two hosts.  Returns nothing for 0 or too many hosts.
std::optional<Topology> make_fat_tree(std::uint32_t host_count);

}  // namespace verbena::subnet
