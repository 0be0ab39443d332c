#pragma once

#include <cstdint>

#include "base/time.h"

// Real time, for those above the pure layers.
namespace verbena::os {

// CLOCK_MONOTONIC: the Time of every machine in a running program, the same in all processes.
Time now();

// What to add to a Time's nanoseconds for the wall clock's, since 1970: for captures and logs.  The
// wall clock may be set, so ask once per capture.
std::uint64_t wall_clock_offset_ns();

}  // namespace verbena::os
