#pragma once

#include <chrono>

#include "base/time.h"

namespace verbena::os {

// Recognizes that a thread which polls shares its processor with another one that polls, often its
// peer: programs that wake each other at their start are placed on one processor.  The scheduler
// leaves them there for some milliseconds, although another processor is free.  But it looks for a
// free one when a thread wakes.  So the thread sleeps for a moment, and rarely, because there may
// be no free one.  Pure.  Only one thread may use it.
class SharedProcessor {
 public:
  // Notes that the thread yielded from `before` to `after`.  Returns true if it should sleep now.
  bool yielded(Time before, Time after) {
    if (after - before < kAlone) {
      shared_ = 0;
      return false;
    }
    if (++shared_ < kShared || after < next_) return false;
    shared_ = 0;
    next_ = after + kSleepEvery;
    return true;
  }

 private:
  // Another thread has run if a yield took longer.
  static constexpr Duration kAlone = std::chrono::microseconds(2);
  static constexpr int kShared = 8;  // yields in a row
  static constexpr Duration kSleepEvery = std::chrono::milliseconds(5);

  int shared_ = 0;  // yields in a row that let another thread run
  Time next_{};     // no sleep before this time
};

}  // namespace verbena::os
