#pragma once

#include <sched.h>

#include <cstdint>

#include "base/time.h"
#include "os/adaptive_spin.h"
#include "os/clock.h"

// Lets a thread spin for a moment if that costs less than a sleep and a wake-up.
namespace verbena::preload::processor {

inline constexpr Duration kSpin = std::chrono::microseconds(50);
inline constexpr Duration kShortSpin = std::chrono::microseconds(20);
// During a spin the kernel is checked this often, because only the kernel reports ends and errors.
inline constexpr Duration kKernelCheckInterval = std::chrono::microseconds(8);

// Returns true if this process may run on several processors.  With one processor, no peer could
// run during a spin.
bool has_several_processors();

inline void pause() {
#if defined(__x86_64__)
  for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#endif
}

// Returns a time for comparisons, by a clock that all processes of the host share.  The call costs
// less than os::now().
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(os::now().time_since_epoch().count());
#endif
}

enum class SpinResult : std::uint8_t { kNothing, kBytes, kKernelEvent };

// Returns the calling thread's AdaptiveSpin, which predicts whether its next wait will be short.
os::AdaptiveSpin& adaptive_spin();

// Spins until `has_bytes()` or `kernel_has_events()` returns true, at most for kSpin.  Calls
// `kernel_has_events()` only every kKernelCheckInterval.  Does not spin if the process has only one
// processor, if the thread's last waits were long, or if other threads need its processor
// (os/adaptive_spin.h).
template <class RingCheck, class KernelCheck>
SpinResult spin(RingCheck has_bytes, KernelCheck kernel_has_events) {
  os::AdaptiveSpin& adaptive = adaptive_spin();
  if (!has_several_processors() || !adaptive.should_spin()) return SpinResult::kNothing;
  const Time began = os::now();
  Time next_kernel_check = began + kKernelCheckInterval;
  for (;;) {
    if (has_bytes()) {
      adaptive.record_successful_spin();
      return SpinResult::kBytes;
    }
    const Time now = os::now();
    if (now - began >= kSpin) break;
    if (now >= next_kernel_check) {
      if (kernel_has_events()) {
        adaptive.record_successful_spin();
        return SpinResult::kKernelEvent;
      }
      const Time before = os::now();
      ::sched_yield();
      const Time after = os::now();
      if (!adaptive.yielded(after - before)) return SpinResult::kNothing;
      next_kernel_check = after + kKernelCheckInterval;
    }
    pause();
  }
  adaptive.record_failed_spin();
  return SpinResult::kNothing;
}

// Measures how long the thread sleeps in the kernel.  If the sleep ends with an event, reports its
// length to the thread's AdaptiveSpin.
class SleepTimer {
 public:
  SleepTimer() : began_(os::now()) {}
  void ended(bool with_event) const {
    if (with_event) adaptive_spin().record_sleep(os::now() - began_);
  }

 private:
  Time began_;
};

// Spins until `is_done()` returns true, at most for kShortSpin.  Returns false if the time ran out.
// With only one processor it returns false at once.
template <class Check>
bool spin_short(Check is_done) {
  if (!has_several_processors()) return false;
  const Time began = os::now();
  while (!is_done()) {
    if (os::now() - began >= kShortSpin) return false;
    pause();
  }
  return true;
}

}  // namespace verbena::preload::processor
