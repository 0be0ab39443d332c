#pragma once

#include <functional>

namespace verbena::cli {

// Runs `program` in a child process and waits for its end.  `program` becomes another program or
// returns an exit code.  To our parent, we look like the program: we pass signals on to it, stop
// and continue when it does, and it does not outlive us, even if we are killed.  Returns its status
// as waitpid(2) does, or -1 and errno if it cannot make a child.  REQUIRES: one thread.
int supervise(const std::function<int()>& program);

// Ends this process as the status says: with its exit code, or by its signal.
[[noreturn]] void end_as(int status);

}  // namespace verbena::cli
