#include "os/wait_habit.h"

#include <algorithm>

namespace verbena::os {

void WaitHabit::slept(Duration time) {
  if (short_waits_ < 0 || time < moment_) {
    short_waits_ = std::min(short_waits_ + 1, kShortWaits);
  } else {
    short_waits_ = 0;
  }
}

void WaitHabit::did_not_wait() {
  if (short_waits_ < 0) ++short_waits_;
  found_something();
}

void WaitHabit::found_something() { pause_ = std::max(pause_ / 2, kPauseMin); }

void WaitHabit::looked_in_vain() {
  if (short_waits_ < 0) return;  // others_ran() has already counted this spin
  crowded_ = false;
  short_waits_ = -pause_;
  pause_ = std::min(2 * pause_, kPauseMax);
}

bool WaitHabit::others_ran(Duration time) {
  if (time < kCrowded) return true;
  pause_ = std::max(pause_, kPauseWhenCrowded);
  short_waits_ = 0;
  looked_in_vain();
  crowded_ = true;
  return false;
}

}  // namespace verbena::os
