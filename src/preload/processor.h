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
// During a spin the kernel is asked this often, because it reports ends and errors.
inline constexpr Duration kAskKernelEvery = std::chrono::microseconds(8);

// Returns false if this process may run on one processor only, because then a peer there could not
// run during the spin.
bool has_others();

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

enum class Found : std::uint8_t { kNothing, kBytes, kKernel };

// Returns the calling thread's record of its last waits.
os::AdaptiveSpin& waits();

// Spins until `found()` returns true, or until `kernel_has_news()` does, which is called now and
// then.  Does not spin if the thread's last waits were long, or if others need its processor
// (os/adaptive_spin.h).
template <class Look, class News>
Found spin(Look found, News kernel_has_news) {
  os::AdaptiveSpin& mine = waits();
  if (!has_others() || !mine.should_spin()) return Found::kNothing;
  const Time began = os::now();
  Time ask_at = began + kAskKernelEvery;
  for (;;) {
    if (found()) {
      mine.spin_succeeded();
      return Found::kBytes;
    }
    const Time now = os::now();
    if (now - began >= kSpin) break;
    if (now >= ask_at) {
      if (kernel_has_news()) {
        mine.spin_succeeded();
        return Found::kKernel;
      }
      const Time before = os::now();
      ::sched_yield();
      const Time after = os::now();
      if (!mine.yielded(after - before)) return Found::kNothing;
      ask_at = after + kAskKernelEvery;
    }
    pause();
  }
  mine.spin_failed();
  return Found::kNothing;
}

// Records how long the thread slept in the kernel, if the sleep ended with an event.
class Sleep {
 public:
  Sleep() : began_(os::now()) {}
  void ended(bool with_event) const {
    if (with_event) waits().slept(os::now() - began_);
  }

 private:
  Time began_;
};

// Spins until `found()` returns true, at most for kShortSpin.  Returns false if it did not.
template <class Look>
bool spin_short(Look found) {
  if (!has_others()) return false;
  const Time began = os::now();
  while (!found()) {
    if (os::now() - began >= kShortSpin) return false;
    pause();
  }
  return true;
}

}  // namespace verbena::preload::processor
