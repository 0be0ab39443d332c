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
// A spin asks the kernel this often, because only the kernel reports ends and errors.
inline constexpr Duration kAskKernelEvery = std::chrono::microseconds(8);

// Returns true if this process may run on several processors.  With one processor, no peer could
// run during a spin.
bool has_several_processors();

inline void pause() {
#if defined(__x86_64__)
  for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#endif
}

// Returns a time that all processes of the host share, for comparisons only.  Costs less than
// os::now().
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(os::now().time_since_epoch().count());
#endif
}

enum class SpinResult : std::uint8_t { kNothing, kBytes, kKernel };

// Returns the predictor of the calling thread's waits.
os::AdaptiveSpin& adaptive_spin();

// Spins until `found()` or `kernel_has_news()` returns true.  Calls `kernel_has_news()` only now
// and then.  Does not spin if the thread's last waits were long, or if other threads need its
// processor (os/adaptive_spin.h).
template <class Look, class News>
SpinResult spin(Look found, News kernel_has_news) {
  os::AdaptiveSpin& adaptive = adaptive_spin();
  if (!has_several_processors() || !adaptive.should_spin()) return SpinResult::kNothing;
  const Time began = os::now();
  Time ask_at = began + kAskKernelEvery;
  for (;;) {
    if (found()) {
      adaptive.spin_succeeded();
      return SpinResult::kBytes;
    }
    const Time now = os::now();
    if (now - began >= kSpin) break;
    if (now >= ask_at) {
      if (kernel_has_news()) {
        adaptive.spin_succeeded();
        return SpinResult::kKernel;
      }
      const Time before = os::now();
      ::sched_yield();
      const Time after = os::now();
      if (!adaptive.yielded(after - before)) return SpinResult::kNothing;
      ask_at = after + kAskKernelEvery;
    }
    pause();
  }
  adaptive.spin_failed();
  return SpinResult::kNothing;
}

// Records how long the thread slept in the kernel, if the sleep ended with an event.
class SleepTimer {
 public:
  SleepTimer() : began_(os::now()) {}
  void ended(bool with_event) const {
    if (with_event) adaptive_spin().slept(os::now() - began_);
  }

 private:
  Time began_;
};

// Spins until `found()` returns true, at most for kShortSpin.  Returns false if it did not.
template <class Look>
bool spin_short(Look found) {
  if (!has_several_processors()) return false;
  const Time began = os::now();
  while (!found()) {
    if (os::now() - began >= kShortSpin) return false;
    pause();
  }
  return true;
}

}  // namespace verbena::preload::processor
