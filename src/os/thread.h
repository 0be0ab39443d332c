#pragma once

#include <functional>
#include <thread>

#include "base/error.h"

namespace verbena::os {

// Starts a thread.  All signals except those of faults (kFaultSignals) are blocked in it from its
// first instruction, so that the program's handlers of other signals never run in it.  The command
// ps shows the first 15 characters of `name`.  kSystem: the system has no more threads.
Result<std::thread> start_thread(const char* name, std::move_only_function<void()> body);

// Returns true if this thread may run on only one processor.  While the thread spins there, it
// keeps the threads that share the processor from running.
bool has_one_processor();

// Yields the processor to other threads.
void yield_processor();
// Sleeps for the shortest time that the kernel's timers allow, usually 50 us.  It is not a
// cancellation point.
void sleep_shortest();

}  // namespace verbena::os
