#pragma once

#include <functional>
#include <thread>

#include "base/error.h"

namespace verbena::os {

// Starts a thread with all signals but faults blocked from its first instruction, so that the
// program's handlers never run in it.  `name` shows in ps, cut to 15 characters.  kSystem: the
// system has no more threads.
Result<std::thread> start_thread(const char* name, std::move_only_function<void()> body);

// Returns true if this thread may run on one processor only.  While the thread spins there, it
// keeps the threads that share the processor from running.
bool has_one_processor();

// Yields the processor to other threads.
void let_others_run();
// Sleeps for the shortest time that the kernel's timers allow, usually 50 us.
void sleep_for_a_moment();

}  // namespace verbena::os
