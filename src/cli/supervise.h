#pragma once

#include <functional>

namespace verbena::cli {

// Runs `program` in a child process and waits for its end.  `program` becomes another program by
// exec, or returns an exit code.  To its own parent, this process behaves like the program: it
// forwards signals to the program, and stops and continues with the program.  The program does not
// outlive this process, even if this process is killed.  Returns the program's status as waitpid(2)
// does, or -1 and errno if it cannot make a child.  REQUIRES: the process has one thread.
int supervise(const std::function<int()>& program);

// Ends this process with the exit code or by the signal in `status`.
[[noreturn]] void end_as(int status);

}  // namespace verbena::cli
