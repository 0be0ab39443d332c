#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "base/time.h"
#include "os/adaptive_spin.h"

namespace verbena::client {

// Spins for a moment before it sleeps (adaptive spin), if the last sleeps were short.
// Waking a thread on another processor takes tens of microseconds, in which a peer could send a
// whole window.
//
// The thread yields between two polls.  If another thread computes during the yield, the spinning
// thread sleeps at once and does not spin for a while.  The reason is that the scheduler runs a
// woken thread before the others, but runs a thread that yielded after them.  A thread that runs
// for a moment, for example to take completions, does not count as computing.  One object serves
// one thread.
class SpinThenSleep {
 public:
  // Limits the length of a spin.  A sleep of at most this length counts as short.
  static constexpr Duration kSpinMax = std::chrono::microseconds(100);

  // Returns the number of ready descriptors.  `wait(until)` waits until that time, or only polls if
  // the time has passed.  It returns how many descriptors are ready, and true if they report
  // packets.  `polls()` returns true if the program polls, so that the caller need not spin.
  template <class Clock, class YieldProcessor, class Wait, class Polls>
  std::size_t wait(Time deadline, Clock clock, YieldProcessor yield_processor, Wait wait,
                   Polls polls) {
    const Time began = clock();
    if (spin_.should_spin()) {
      const Time end = began + kSpinMax;
      for (Time now = began; now < std::min(deadline, end);) {
        const auto [count, packets] = wait(Time{});
        if (packets) spin_.record_successful_spin();
        if (count > 0) return count;
        if (polls()) break;
        const Time before = clock();
        yield_processor();
        now = clock();
        if (!spin_.yielded(now - before)) break;
        if (now >= end) spin_.record_failed_spin();
      }
    }
    const auto [count, packets] = wait(deadline);
    // A short sleep that something else ended, such as a new timer, predicts nothing about packets.
    const Duration slept = clock() - began;
    if (packets || slept >= kSpinMax) spin_.record_sleep(slept);
    return count;
  }

 private:
  os::AdaptiveSpin spin_{kSpinMax};
};

}  // namespace verbena::client
