#include "os/thread.h"

#include <pthread.h>
#include <sched.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <system_error>
#include <utility>

#include "os/fd.h"
#include "os/signal_block.h"
#include "os/system_call.h"

namespace verbena::os {

Result<std::thread> start_thread(const char* name, std::move_only_function<void()> body) {
  sigset_t all;
  sigset_t old_mask;
  sigfillset(&all);
  // A copy of the program's memory may raise SIGSEGV and SIGBUS (fault_guard.h), and a seccomp
  // filter of the program raises SIGSYS.
  for (const int fault : kFaultSignals) sigdelset(&all, fault);
  ::pthread_sigmask(SIG_SETMASK, &all, &old_mask);  // the new thread inherits this mask
  Result<std::thread> thread = fail(Errc::kSystem, "cannot start a thread");
  try {
    thread = std::thread([run = std::move(body)]() mutable { run(); });
  } catch (const std::system_error& error) {
    thread = system_error(error.code().value(), "cannot start a thread");
  }
  ::pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  if (thread.has_value()) {
    char short_name[16];
    std::snprintf(short_name, sizeof(short_name), "%s", name);
    ::pthread_setname_np(thread->native_handle(), short_name);
  }
  return thread;
}

bool has_one_processor() {
  cpu_set_t allowed;
  // The call fails on a machine with more processors than cpu_set_t can represent.
  return ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0 && CPU_COUNT(&allowed) == 1;
}

void yield_processor() { ::sched_yield(); }

void sleep_shortest() {
  constexpr timespec kShortest{.tv_sec = 0, .tv_nsec = 1};
  system_call(SYS_nanosleep, &kShortest, nullptr);  // the wrapper is a cancellation point
}

}  // namespace verbena::os
