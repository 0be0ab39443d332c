#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::subnet {

// Records which switches the copies of one multicast packet have entered.  No second copy enters a
// switch, so a loop in the forwarding tables cannot multiply the packet.  Such loops last for a
// moment whenever a manager moves a group to another tree, because it writes one table after
// another.
class EnteredSwitches {
 public:
  // REQUIRES: the indexes of all nodes are less than `node_count`.
  explicit EnteredSwitches(std::size_t node_count) : entered_(node_count) {}

  // Records that a copy enters the switch.  Returns false if another copy has entered it before.
  bool enter(std::uint32_t node) {
    if (entered_[node]) return false;
    entered_[node] = true;
    return true;
  }

 private:
  std::vector<bool> entered_;  // by node
};

}  // namespace verbena::subnet
