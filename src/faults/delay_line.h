#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "base/time.h"

namespace verbena::faults {

// Holds the packets that are on their way in one direction: those of a slow link until they are
// due, and those of a paused host until its pause ends.  The packets keep their order.
template <class Packet>
class DelayLine {
 public:
  // Limits the packets of a line.  The owner drops and counts a packet that push() refuses.
  static constexpr std::size_t kPacketsMax = 4096;

  // Returns false if the line is full.  A packet is not due before the packets in front of it.
  bool push(Packet packet, Time due) {
    if (packets_.size() == kPacketsMax) return false;
    if (!packets_.empty()) due = std::max(due, packets_.back().due);
    packets_.push_back({due, std::move(packet)});
    return true;
  }
  // Returns the first packet if it is due, else null.
  Packet* due(Time now) {
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
  // Returns the time at which the first packet is due; kNever if there is none.
  Time next_due() const { return packets_.empty() ? kNever : packets_.front().due; }

 private:
  struct Entry {
    Time due{};
    Packet packet{};
  };
  std::deque<Entry> packets_{};
};

}  // namespace verbena::faults
