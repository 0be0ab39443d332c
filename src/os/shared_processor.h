#pragma once

#include <chrono>

#include "base/time.h"

namespace verbena::os {

// Detects that two threads that poll share a processor, often a thread and its peer.  The scheduler
// places programs that wake each other on one processor, and does not move them for some
// milliseconds even if another processor is free.  It searches for a free processor when a thread
// wakes, so a thread that shares its processor should sleep for a moment.  It should do so rarely,
// because there may be no free processor.  Makes no system calls.  Only one thread may use an
// object of this class.
class SharedProcessor {
 public:
  // Records that the thread yielded from `before` to `after`.  Returns true if it should sleep now.
  bool yielded(Time before, Time after) {
    if (after - before < kUnsharedYieldMax) {
      slow_yields_ = 0;
      return false;
    }
    if (++slow_yields_ < kSlowYieldsMax || after < next_sleep_) return false;
    slow_yields_ = 0;
    next_sleep_ = after + kSleepEvery;
    return true;
  }

 private:
  // If a yield takes at least this long, another thread has run.
  static constexpr Duration kUnsharedYieldMax = std::chrono::microseconds(2);
  static constexpr int kSlowYieldsMax = 8;  // it sleeps after so many slow yields in a row
  static constexpr Duration kSleepEvery = std::chrono::milliseconds(5);

  int slow_yields_ = 0;  // yields in a row that let another thread run
  Time next_sleep_{};    // the thread should not sleep before this time
};

}  // namespace verbena::os
