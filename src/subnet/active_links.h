#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "subnet/subnet.h"

namespace verbena::subnet {

// Detects when subnet managers have activated all links that directed routes from their ports can
// reach.  A link is active if both its ports are in the state Active.  Links whose cable is pulled,
// or that do not train, are ignored.
class ActiveLinks {
 public:
  // REQUIRES: the subnet outlives this object; the ports are of HCAs.
  ActiveLinks(const Subnet& subnet, std::span<const PortRef> manager_ports);

  // Returns true if all these links are active.  A call that returns false is cheap, so this
  // function may be called after each change.
  bool are_all_active();
  // Returns the ports of HCAs at these links.
  std::vector<PortRef> hca_ports() const;
  // Returns up to `limit` ports of these links that are not active.
  std::vector<PortRef> inactive_ports(std::size_t limit) const;

 private:
  // Returns true if both ports of the link are active, or the link is down.
  bool is_active_or_down(std::size_t link) const;

  const Subnet& subnet_;
  std::vector<std::size_t> links_{};  // indexes in Topology::links
  std::size_t first_inactive_ = 0;    // the index in links_ where are_all_active() begins
};

}  // namespace verbena::subnet
