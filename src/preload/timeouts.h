#pragma once

#include <sys/time.h>
#include <time.h>

#include <chrono>

#include "base/time.h"

// Checks and converts timeouts that the program passes to its calls.
namespace verbena::preload {

// These two functions return false for a timeout that the original call refuses with EINVAL.
inline bool is_valid(const timespec* timeout) {
  return timeout == nullptr ||
         (timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 && timeout->tv_nsec < 1'000'000'000);
}
inline bool is_valid(const timeval* timeout) {  // select() accepts more than 999,999 microseconds
  return timeout == nullptr || (timeout->tv_sec >= 0 && timeout->tv_usec >= 0);
}

// Converts a valid timeout.  Returns Duration::max() if the timeout is longer than that.
inline Duration duration_of(const timespec& timeout) {
  constexpr auto kSecondsMax = std::chrono::floor<std::chrono::seconds>(Duration::max()).count();
  if (timeout.tv_sec >= kSecondsMax) return Duration::max();
  return std::chrono::seconds(timeout.tv_sec) + std::chrono::nanoseconds(timeout.tv_nsec);
}

}  // namespace verbena::preload
