#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "base/time.h"
#include "os/wait_habit.h"

namespace verbena::client {

// Looks for packets for a moment before it sleeps (adaptive spin), if the last sleeps were short.
// Waking a thread on another processor takes tens of microseconds, in which a peer could send a
// whole window.
//
// Other threads may run between two looks.  When one does, this thread sleeps at once and does not
// look again for a while: the scheduler lets a woken thread run before the others, but one that has
// yielded after them.  One object serves one thread.
class LookThenSleep {
 public:
  // How long it looks.  A shorter sleep counts as short.
  static constexpr Duration kMoment = std::chrono::microseconds(100);
  // A yield that takes longer has let a thread run that computes.  Shorter ones are threads that
  // were woken and wait again soon, as the one that takes a stream's completions.
  static constexpr Duration kOthersRan = std::chrono::microseconds(300);
  // For so long it does not look after that.  Each time in a row doubles it.
  static constexpr Duration kRestMin = std::chrono::milliseconds(10);
  static constexpr Duration kRestMax = std::chrono::seconds(1);

  // `wait(until)` waits until then, or just looks if that has passed; it gives how many descriptors
  // are ready, and whether packets are among them.  `polls()` says that the program polls, and so
  // looks itself.
  template <class Clock, class LetOthersRun, class Wait, class Polls>
  std::size_t wait(Time deadline, Clock clock, LetOthersRun let_others_run, Wait wait,
                   Polls polls) {
    const Time began = clock();
    if (habit_.looks_on() && began >= rests_until_) {
      const Time end = began + kMoment;
      for (Time now = began; now < std::min(deadline, end);) {
        const auto [count, packets] = wait(Time{});
        if (packets) habit_.found_something();
        if (count > 0) return count;
        if (polls()) break;
        const Time before = clock();
        let_others_run();
        now = clock();
        if (now - before >= kOthersRan) {
          rest(now);
          break;
        }
        if (now >= end) habit_.looked_in_vain();
      }
    }
    const auto [count, packets] = wait(deadline);
    // A short sleep that something else ended, as a new timer, says nothing about packets.
    const Duration slept = clock() - began;
    if (packets || slept >= kMoment) habit_.slept(slept);
    return count;
  }

 private:
  void rest(Time now) {
    rest_ = now < rests_until_ + rest_ ? std::min(2 * rest_, kRestMax) : kRestMin;
    rests_until_ = now + rest_;
  }

  os::WaitHabit habit_{kMoment};
  Duration rest_{};
  Time rests_until_{};
};

}  // namespace verbena::client
