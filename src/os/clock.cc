#include "os/clock.h"

#include <ctime>

namespace verbena::os {
namespace {

std::int64_t read_clock_ns(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

Time now() { return Time(Duration(read_clock_ns(CLOCK_MONOTONIC))); }

std::uint64_t wall_clock_offset_ns() {
  return static_cast<std::uint64_t>(read_clock_ns(CLOCK_REALTIME) - read_clock_ns(CLOCK_MONOTONIC));
}

}  // namespace verbena::os
