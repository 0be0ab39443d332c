#pragma once

#include "base/time.h"

namespace verbena::os {

// Whether who waits is likely to be needed again so soon that to look on costs less than to sleep
// and be woken.  After some waits that were over within `moment` it is.  After a look in vain it is
// not for the next waits, and each time for more, until looks find something again: where others
// compute they do not, for who is to answer has no processor.  For one thread; constinit.
class WaitHabit {
 public:
  explicit constexpr WaitHabit(Duration moment) : moment_(moment) {}

  bool looks_on() const { return short_waits_ >= kShortWaits; }
  // How long it looks.
  Duration moment() const { return moment_; }

  void slept(Duration time);
  // It asks again and again instead, and what it waits for has come.
  void did_not_wait();
  void found_something();
  void looked_in_vain();
  // It let others run, for so long.  False: they compute, and who sleeps is woken before them.
  bool others_ran(Duration time);
  // That was not long ago.
  bool others_compute() const { return crowded_ && short_waits_ <= -kPauseWhenCrowded / 2; }

 private:
  static constexpr int kShortWaits = 4;
  static constexpr int kPauseMin = 16;
  static constexpr int kPauseWhenCrowded = 512;
  static constexpr int kPauseMax = 4096;
  static constexpr Duration kCrowded = std::chrono::microseconds(300);

  Duration moment_;
  int short_waits_ = 0;  // below zero: so many waits are to come before they count
  int pause_ = kPauseMin;
  bool crowded_ = false;
};

}  // namespace verbena::os
