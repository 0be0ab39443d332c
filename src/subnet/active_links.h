#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "subnet/subnet.h"

namespace verbena::subnet {

// Detects when subnet managers have brought up their part of a subnet, so that the ports at both
// ends of each link are in the state Active.  Links whose cable is pulled, or that do not train, do
// not count.  The part has the nodes that directed routes from the managers' ports reach.
class ActiveLinks {
 public:
  // REQUIRES: the subnet outlives this object; the ports are of HCAs.
  ActiveLinks(const Subnet& subnet, std::span<const PortRef> managers);

  // Returns true if all ports with a link are active.  A call costs little while they are not, so
  // it may be made after each change.
  bool all_active();
  // Returns up to `limit` ports that are not active though they have a link.
  std::vector<PortRef> inactive_ports(std::size_t limit) const;

 private:
  bool is_active(std::size_t link) const;

  const Subnet& subnet_;
  std::vector<std::size_t> links_{};  // places in Topology::links
  std::size_t first_inactive_ = 0;    // all links before it in links_ were active once
};

}  // namespace verbena::subnet
