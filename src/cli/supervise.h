#pragma once

#include <functional>

namespace verbena::cli {

// Runs `program` in a child process and waits for its end.  `program` becomes another program by
// exec, or returns an exit code.  This process behaves like the program towards its own parent: it
// passes signals on, and stops and continues with the program.  The program does not outlive this
// process, even if this process is killed.  Returns the program's status as waitpid(2) does, or -1
// and errno if there can be no child.  REQUIRES: the process has one thread.
int supervise(const std::function<int()>& program);

// Ends this process with the exit code or by the signal in `status`.
[[noreturn]] void end_as(int status);

}  // namespace verbena::cli
