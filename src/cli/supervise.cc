#include "cli/supervise.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace verbena::cli {
namespace {

// Holds the caller's signal mask and its action for SIGCHLD, which the program inherits.
struct InheritedSignals {
  sigset_t mask{};
  struct sigaction child_signal {};
};

[[noreturn]] void run_child(pid_t parent, const InheritedSignals& inherited,
                            const std::function<int()>& program) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);  // the parent died before the prctl()
  ::sigaction(SIGCHLD, &inherited.child_signal, nullptr);
  ::sigprocmask(SIG_SETMASK, &inherited.mask, nullptr);
  ::_exit(program());
}

// Handles SIGCHLD.  Returns true if the child has ended; `status` is then its status.
bool on_child_signal(pid_t child, int& status) {
  if (::waitpid(child, &status, WNOHANG | WUNTRACED) != child) return false;
  if (!WIFSTOPPED(status)) return true;
  ::kill(::getpid(), SIGSTOP);  // stop this process too, so that the shell notices
  ::kill(child, SIGCONT);
  return false;
}

}  // namespace

int supervise(const std::function<int()>& program) {
  const pid_t parent = ::getpid();
  InheritedSignals inherited;
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &inherited.mask);
  // Do not ignore SIGCHLD, because the kernel would then discard the child's status.
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &default_action, &inherited.child_signal);
  const pid_t child = ::fork();
  if (child == 0) run_child(parent, inherited, program);
  int status = -1;
  while (child > 0) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&all, &info);
    if (signal == SIGCHLD) {
      if (on_child_signal(child, status)) break;
    } else if (signal > 0 && info.si_code != SI_KERNEL) {
      // A signal from the terminal (SI_KERNEL) has reached the child already.
      ::kill(child, signal);
    }
  }
  ::sigprocmask(SIG_SETMASK, &inherited.mask, nullptr);
  return status;
}

void end_as(int status) {
  if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  const rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);  // the program has already written its own core file
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  ::sigaction(signal, &default_action, nullptr);
  sigset_t only_signal;
  sigemptyset(&only_signal);
  sigaddset(&only_signal, signal);
  ::sigprocmask(SIG_UNBLOCK, &only_signal, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);
}

}  // namespace verbena::cli
