#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "subnet/subnet.h"

namespace verbena::subnet {

// Detects when subnet managers have brought up the links that directed routes from their ports can
// reach: both ports of each link are in the state Active.  Links whose cable is pulled, or that do
// not train, do not count.
class ActiveLinks {
 public:
  // REQUIRES: the subnet outlives this object; the ports are of HCAs.
  ActiveLinks(const Subnet& subnet, std::span<const PortRef> managers);

  // Returns true if all ports with a link are active.  A call that returns false costs little, so
  // it may be made after each change.
  bool all_active();
  // Returns up to `limit` ports that have a link but are not active.
  std::vector<PortRef> inactive_ports(std::size_t limit) const;

 private:
  // Returns true if both ports of the link are active, or the link is down.
  bool is_active(std::size_t link) const;

  const Subnet& subnet_;
  std::vector<std::size_t> links_{};  // indexes in Topology::links
  std::size_t first_inactive_ = 0;    // all_active() begins at this index of links_
};

}  // namespace verbena::subnet
