#pragma once

#include <cstddef>

namespace verbena::subnet {

// Holds a queue for SMPs and a queue for all other packets.  SMPs use virtual lane 15, which has
// buffers of its own and goes before the data lanes (vol1 7.6).  So data packets can neither take
// the space of SMPs nor delay them.
template <class Queue>
struct LaneQueues {
  Queue smps{};
  Queue others{};

  Queue& of(bool is_smp) { return is_smp ? smps : others; }
  // Returns the queue whose packets go first.  REQUIRES: !empty().
  Queue& next() { return smps.empty() ? others : smps; }
  bool empty() const { return smps.empty() && others.empty(); }
  std::size_t size() const { return smps.size() + others.size(); }
};

}  // namespace verbena::subnet
