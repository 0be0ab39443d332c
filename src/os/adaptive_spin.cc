#include "os/adaptive_spin.h"

#include <algorithm>

namespace verbena::os {

void AdaptiveSpin::record_sleep(Duration time) {
  if (short_waits_ < 0 || time < spin_limit_) {
    short_waits_ = std::min(short_waits_ + 1, kShortWaits);
  } else {
    short_waits_ = 0;
  }
}

void AdaptiveSpin::polled() {
  if (short_waits_ < 0) ++short_waits_;
  record_successful_spin();
}

void AdaptiveSpin::record_successful_spin() { pause_ = std::max(pause_ / 2, kPauseMin); }

void AdaptiveSpin::record_failed_spin() {
  if (short_waits_ < 0) return;  // yielded() has already counted this spin
  short_waits_ = -pause_;
  pause_ = std::min(2 * pause_, kPauseMax);
}

bool AdaptiveSpin::yielded(Duration time) {
  if (time < kSlowYield) return true;
  pause_ = std::max(pause_, kPauseAfterSlowYield);
  short_waits_ = 0;
  record_failed_spin();
  return false;
}

}  // namespace verbena::os
