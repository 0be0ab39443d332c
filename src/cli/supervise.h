#pragma once

#include <functional>

namespace verbena::cli {

// Runs `program`, which becomes another program or returns an exit code, in a child process, and
// waits for its end.  To whoever started us it looks as if we were the program: signals that are
// sent to us go to it, we stop and go on when it does, and it does not outlive us, even if we are
// killed.  Gives its status as waitpid(2) does, or -1 and errno if there can be no child.
// REQUIRES: one thread.
int supervise(const std::function<int()>& program);

// Ends this process as the status says: with its exit code, or by its signal.
[[noreturn]] void end_as(int status);

}  // namespace verbena::cli
