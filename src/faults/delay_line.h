#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "base/time.h"

namespace verbena::faults {

// Queues delayed packets of one direction of a link, in their order.  A packet on a slow link waits
// until it is due.  The owner leaves the packets to and from a paused host in the line until the
// pause ends.
template <class Packet>
class DelayLine {
 public:
  // Limits the number of packets in a line.  If push() refuses a packet, the owner drops it.
  static constexpr std::size_t kPacketsMax = 4096;

  // Appends a packet.  Returns false if the line is full.  A packet is never due earlier than the
  // packets in front of it.
  bool push(Packet packet, Time due) {
    if (packets_.size() == kPacketsMax) return false;
    if (!packets_.empty()) due = std::max(due, packets_.back().due);
    packets_.push_back({due, std::move(packet)});
    return true;
  }
  // Returns the first packet, or null if it is not due or the line is empty.
  Packet* first_due_packet(Time now) {
    return packets_.empty() || packets_.front().due > now ? nullptr : &packets_.front().packet;
  }
  // Removes and returns the first packet.  REQUIRES: !empty().
  Packet pop() {
    Packet first = std::move(packets_.front().packet);
    packets_.pop_front();
    return first;
  }

  bool empty() const { return packets_.empty(); }
  std::size_t size() const { return packets_.size(); }
  // Returns the time at which the first packet is due, or kNever if the line is empty.
  Time next_due() const { return packets_.empty() ? kNever : packets_.front().due; }

 private:
  struct Entry {
    Time due{};
    Packet packet{};
  };
  std::deque<Entry> packets_{};
};

}  // namespace verbena::faults
