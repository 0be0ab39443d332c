#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "os/fd.h"

// Starting the agent from within a program that must notice nothing: no SIGCHLD, nothing for
// waitpid(-1), no inherited descriptor, directory, mask, signal disposition, terminal, CPU
// affinity, real-time priority or resource limit.
//
//   program --clone, no exit signal--> helper: setsid, stdio, ... --clone--> exec verbenad
//      |                                  exits at once; the program reaps it by its pid
//      '-- waits for a byte, a text or end of file on the readiness pipe
//
// Where the program itself would inherit the orphan (it is process 1, or a subreaper, or its
// children live in another process namespace), the helper stays as "verbena-keeper" and reaps the
// agent.  It is never exec'd, since exec would give it an exit signal.
namespace verbena::os {

// The daemon's end of the readiness pipe: tell it so by an argument, since it has that number.
inline constexpr int kReadyFd = 3;

struct DaemonOptions {
  std::string path;               // of the executable
  std::vector<std::string> args;  // argv, [0] included
  Time deadline = kNever;         // for readiness
};

struct Daemon {
  // Of the keeper, else empty.  Becomes readable when the daemon has ended; then reap_keeper().
  Fd keeper_pidfd{};
};

// Starts it and waits until it reports.  Keep what it gives for as long as the program lives: an
// ended keeper stays a zombie, invisible to the program's own waits, until reap_keeper().  The
// daemon's environment is PATH, HOME and VERBENA_* of this program's, or empty if this is a
// privileged program (AT_SECURE), and it belongs to the effective user alone.  kUnreachable: it
// ended or reported a failure; `problem` is its text.  kTimedOut: no word until the deadline; it is
// left alone.  kSystem.  Any thread; blocks, no cancellation point.
Result<Daemon> start_daemon(const DaemonOptions& options, std::string& problem);

// Takes the ended keeper out of the process table.  False: it runs still, or is not ours (a forked
// child).
bool reap_keeper(Daemon& daemon);

// For the daemon: "I listen now", or why not (one line).  Closes the descriptor.
void report_ready(int ready_fd);
void report_failure(int ready_fd, std::string_view text);

}  // namespace verbena::os
