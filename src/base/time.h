#pragma once

#include <chrono>
#include <cstdint>

namespace verbena {

// Protocol code uses this clock.  The clock has no now(): callers pass the time as an argument.
// The time comes from the kernel in production and from the simulator in a test, so the same code
// runs in both.
struct StackClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<StackClock>;
  static constexpr bool is_steady = true;
};

using Duration = StackClock::duration;
using Time = StackClock::time_point;

// kNever means "no deadline".
inline constexpr Time kNever = Time::max();

// Converts a timeout code of 5 bits: n stands for 4.096 us * 2^n (vol1 9.7.6.1.3, 12.7.34).
constexpr Duration timeout_of_code(unsigned code) {
  return Duration(std::int64_t{4096} << (code & 31));
}

// Returns the smallest code that stands for at least this duration, or 31 if no code does.
constexpr std::uint8_t code_of_timeout(Duration duration) {
  std::uint8_t code = 0;
  while (code < 31 && timeout_of_code(code) < duration) ++code;
  return code;
}

}  // namespace verbena
