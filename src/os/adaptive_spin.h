#pragma once

#include "base/time.h"

namespace verbena::os {

// Predicts whether the next wait will be so short that spinning is cheaper than sleeping and being
// woken (adaptive spin).  It recommends spinning after a few waits that ended within `spin_limit`.
// After a spin that found nothing, it recommends sleeping for some waits.  Each failed spin doubles
// the number of these waits for the next failure, and each successful spin halves it.  Spins fail
// while other threads compute, because the thread that would cause the event then has no processor.
// Only one thread may use an object.  An object can be constinit.
class AdaptiveSpin {
 public:
  explicit constexpr AdaptiveSpin(Duration spin_limit) : spin_limit_(spin_limit) {}

  // Returns true if the thread should spin instead of sleeping.
  bool should_spin() const { return short_waits_ >= kShortWaits; }
  // Returns the longest time that a spin may last.
  Duration spin_time() const { return spin_limit_; }

  // Records that the thread slept for `time` until the event occurred.
  void record_sleep(Duration time);
  // Records that the program polled instead of waiting, and the event occurred.
  void polled();
  // Records that a spin found the event.
  void record_successful_spin();
  // Records that a spin found nothing.
  void record_failed_spin();
  // Records that the thread yielded the processor while it was spinning, and got it back after
  // `time`.  Returns false if other threads compute.  The caller then stops spinning and sleeps,
  // because the scheduler runs a woken thread earlier than a thread that yielded.
  bool yielded(Duration time);

 private:
  static constexpr int kShortWaits = 4;
  // Each pause is a number of waits without a spin.
  static constexpr int kPauseMin = 16;
  static constexpr int kPauseAfterSlowYield = 512;
  static constexpr int kPauseMax = 4096;
  // If a yield takes at least this long, other threads compute.
  static constexpr Duration kSlowYield = std::chrono::microseconds(300);

  Duration spin_limit_;
  int short_waits_ = 0;    // short waits in a row; -N: N waits are to be ignored first
  int pause_ = kPauseMin;  // the number of waits to ignore after the next spin that finds nothing
};

}  // namespace verbena::os
