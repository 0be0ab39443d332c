#include "os/signal_hold.h"

#include <pthread.h>

#include <initializer_list>

namespace verbena::os {

SignalHold::SignalHold() {
  sigset_t all;
  sigfillset(&all);
  // Faults that this thread itself may cause must still end the program.
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGSYS})
    sigdelset(&all, fault);
  ::pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalHold::~SignalHold() {
  if (held_) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void SignalHold::release() {
  held_ = false;
  // pthread_sigmask() is declared as never unwinding, but a handler that calls pthread_exit()
  // unwinds through it.  The volatile pointer hides the declaration from the compiler.
  int (*volatile const set_mask)(int, const sigset_t*, sigset_t*) = ::pthread_sigmask;
  set_mask(SIG_SETMASK, &before_, nullptr);
}

bool SignalHold::ends_wait() const {
  sigset_t pending;
  if (::sigpending(&pending) != 0 || sigisemptyset(&pending) != 0) return false;
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&pending, number) != 1 || sigismember(&before_, number) == 1) continue;
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0 || (action.sa_flags & SA_RESTART) != 0) continue;
    // sa_handler and sa_sigaction share one word, so this works for both kinds of handler.
    if (action.sa_handler != SIG_IGN && action.sa_handler != SIG_DFL) return true;
  }
  return false;
}

}  // namespace verbena::os
