#pragma once

#include <cstdint>

#include "base/time.h"

// Reads the clocks of the operating system, for the layers that may use them.
namespace verbena::os {

// Reads CLOCK_MONOTONIC, the Time of every state machine in a running program.  The clock is
// the same in all processes.
Time now();

// Returns the number to add to a Time's nanoseconds to get the wall clock's nanoseconds since 1970,
// for captures and logs.  The result changes when somebody sets the wall clock, so a capture calls
// this function only once.
std::uint64_t wall_clock_offset_ns();

}  // namespace verbena::os
