#pragma once

#include <vector>

#include "ipoib/interface.h"
#include "subnet/topology.h"

namespace verbena::hosts {

// Returns the IP addresses of a port of an HCA.  A netlist contains no IP addresses, so they follow
// from the order of its HCAs: port P of the K-th HCA has 10.(P-1).X.Y, where K = 256 * X + Y, and
// fd00:0:0:(P-1)::K, where K is hexadecimal.  All first ports are on one IP link, and all second
// ports on another.  Returns nothing if K is over 65534.
std::vector<ipoib::OwnAddress> ipoib_addresses(const subnet::Topology& topology,
                                               subnet::PortRef port);

}  // namespace verbena::hosts
