#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "os/fd.h"

// Starts the agent from within a program that must not notice the agent: the program gets no
// SIGCHLD, and its waitpid(-1) finds no child.  The agent inherits no descriptor, directory,
// mask, signal disposition, terminal, CPU affinity or real-time priority, and none of the resource
// limits that set_daemon_limits() replaces.
//
//   program --clone, no exit signal--> helper: setsid, stdio, ... --clone--> exec verbenad
//      |                                  exits at once; the program reaps it by its pid
//      '-- waits for a byte, a text or end of file on the readiness pipe
//
// The agent becomes an orphan when the helper exits.  If the program itself would inherit the
// orphan (it is process 1, or a subreaper, or its children live in another PID namespace), the
// helper remains as the process "verbena-reaper" and reaps the agent.  The helper never calls exec,
// since exec would give it an exit signal.
namespace verbena::os {

// The daemon's end of the readiness pipe always has this number.  Tell the daemon by an argument
// that the pipe exists.
inline constexpr int kReadyFd = 3;

struct DaemonOptions {
  std::string path;               // path of the executable
  std::vector<std::string> args;  // argv, including argv[0]
  Time deadline = kNever;         // the daemon must report before this time
};

struct Daemon {
  // Refers to the reaper process; empty if there is none.  The descriptor becomes readable when the
  // daemon has ended; then call collect_reaper().
  Fd reaper_pidfd{};
};

// Starts the daemon and waits until it reports.  Keep the returned Daemon for as long as the
// program lives: an ended reaper remains a zombie until collect_reaper(), and the program's own
// waits do not see it.  The daemon's environment is PATH, HOME and VERBENA_* of this program, or
// empty if this program is privileged (AT_SECURE).  The daemon has only the ids of the effective
// user.
//
// kUnreachable: the daemon ended or reported a failure; `problem` tells why.  kTimedOut: the daemon
// did not report before the deadline, and continues to run.  kSystem: a system call failed.  With
// these two errors `problem` may be empty.  Any thread may call this function.  It blocks, and is
// not a cancellation point.
Result<Daemon> start_daemon(const DaemonOptions& options, std::string& problem);

// Reaps the reaper if it has ended (waitid(2)).  Returns false if the reaper still runs, or is not
// a child of this process, for example after a fork.
bool collect_reaper(Daemon& daemon);

// The daemon calls report_ready() when it listens, or report_failure() when it failed to start
// (`text` is one line).  Both close the descriptor.
void report_ready(int ready_fd);
void report_failure(int ready_fd, std::string_view text);

}  // namespace verbena::os
