#pragma once

#include <optional>
#include <string>

#include "faults/fault.h"
#include "subnet/topology.h"

namespace verbena::subnet {

// Returns the MTU with this number of bytes, if there is one.
std::optional<Mtu> mtu_of_bytes(std::size_t bytes);

// Returns the reason why this subnet cannot have the fault, in a line for the user: a node or link
// does not exist, a link cannot have the MTU, or the fault changes the P_Keys of a switch.  Returns
// nothing if the subnet can have the fault.
std::optional<std::string> problem_with(const Topology& topology, const faults::Fault& fault);

}  // namespace verbena::subnet
