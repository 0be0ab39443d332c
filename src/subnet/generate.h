#pragma once

#include <cstdint>
#include <optional>

#include "subnet/topology.h"

// Makes common topologies.  Hosts are HCAs named host1, host2 and so on, with one or two ports.
namespace verbena::subnet {

// Limits the hosts of one switch.
inline constexpr std::uint32_t kHostsOfSwitchMax = kSwitchPortsMax;
// Limits the hosts of a fat tree: a leaf has as many hosts as links to spines.
inline constexpr std::uint32_t kHostsOfFatTreeMax = 4096;

// Returns `hosts` hosts at one switch, or, with two ports each, at two switches that are not
// connected.  Nothing if there are none or too many.
std::optional<Topology> make_hosts(std::uint32_t hosts, std::uint8_t ports = 1);

// Returns a fat tree of two levels: each leaf switch has about as many hosts as there are leaves,
// and one link to each of as many spines.  So no link needs to carry the traffic of two hosts.
// Nothing if there are no hosts or too many.
std::optional<Topology> make_fat_tree(std::uint32_t hosts);

}  // namespace verbena::subnet
