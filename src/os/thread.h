#pragma once

#include <functional>
#include <thread>

#include "base/error.h"

namespace verbena::os {

// Starts a thread with all signals blocked from its first instruction, so that a program's handlers
// never run in it.  `name` shows in ps, at most 15 characters.  kSystem: no thread to be had.
Result<std::thread> start_thread(const char* name, std::move_only_function<void()> body);

// Whoever waits for this processor has it first.
void let_others_run();

}  // namespace verbena::os
