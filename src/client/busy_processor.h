#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/time.h"

namespace verbena::client {

// Decides how a thread whose polls find nothing passes the time: it yields, or it sleeps until
// packets come.
//
// A yield is the better choice while only its peer needs the processor.  If another thread computes
// there, a yield takes a whole time slice of that thread, some milliseconds.  A thread that sleeps
// gets the processor back as soon as it is woken, because the scheduler prefers threads that slept.
// So after a late yield the thread sleeps instead of yielding for a while, and then tries a yield
// again.  If that yield is late, too, the next such time is twice as long.
//
// Pure.  One object serves one thread.
class BusyProcessor {
 public:
  // A yield that takes at least this long let another thread compute.  A peer that handles a
  // message needs less.
  static constexpr Duration kLateYield = std::chrono::milliseconds(1);
  // These constants limit the time for which the thread sleeps instead of yielding.
  static constexpr Duration kSleepsMin = std::chrono::milliseconds(50);
  static constexpr Duration kSleepsMax = std::chrono::seconds(2);

  // Records that the thread yielded from `before` to `after`.
  void yielded(Time before, Time after) {
    if (after - before < kLateYield) return;
    const bool soon_again = before < sleeps_until_ + sleeps_for_;
    sleeps_for_ = soon_again ? std::min(2 * sleeps_for_, kSleepsMax) : kSleepsMin;
    sleeps_until_ = after + sleeps_for_;
  }
  // Returns true if the thread should sleep at `now`, and not yield.
  bool should_sleep(Time now) const { return now < sleeps_until_; }

 private:
  Time sleeps_until_{};
  Duration sleeps_for_{};  // the length of the last such time
};

}  // namespace verbena::client
