#include "os/signal_block.h"

#include <pthread.h>

#include <algorithm>

namespace verbena::os {
namespace {

// Returns true for a signal that SignalBlock does not block.
bool is_never_blocked(int number) {
  return number == SIGABRT || std::ranges::find(kFaultSignals, number) != kFaultSignals.end();
}

// Returns true if the program has a handler for the signal, and then sets `flags` to the handler's
// flags.
bool has_handler(int number, int& flags) {
  struct sigaction action {};
  if (::sigaction(number, nullptr, &action) != 0) return false;
  flags = action.sa_flags;
  // sa_handler and sa_sigaction share one word, so this works for both kinds of handler.
  return action.sa_handler != SIG_IGN && action.sa_handler != SIG_DFL;
}

}  // namespace

SignalBlock::SignalBlock() {
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGABRT);
  for (const int fault : kFaultSignals) sigdelset(&all, fault);
  ::pthread_sigmask(SIG_BLOCK, &all, &previous_mask_);
}

SignalBlock::~SignalBlock() {
  if (is_blocking_) ::pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void SignalBlock::release() {
  is_blocking_ = false;
  // pthread_sigmask() is declared as never unwinding, but a handler that calls pthread_exit()
  // unwinds through it.  The volatile pointer hides the declaration from the compiler.
  int (*volatile const set_mask)(int, const sigset_t*, sigset_t*) = ::pthread_sigmask;
  set_mask(SIG_SETMASK, &previous_mask_, nullptr);
}

bool SignalBlock::would_end_wait() const {
  return has_pending([](int flags) { return (flags & SA_RESTART) == 0; });
}

bool SignalBlock::is_pending() const {
  return has_pending([](int) { return true; });
}

bool SignalBlock::has_pending(bool (*is_wanted)(int flags)) const {
  sigset_t pending;
  if (::sigpending(&pending) != 0 || sigisemptyset(&pending) != 0) return false;
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&pending, number) != 1 || sigismember(&previous_mask_, number) == 1) continue;
    int flags = 0;
    if (has_handler(number, flags) && is_wanted(flags)) return true;
  }
  return false;
}

Interruption handler_effect_on_read(const sigset_t& mask) {
  bool ends = false;
  bool restarts = false;
  for (int number = 1; number < NSIG; ++number) {
    int flags = 0;
    if (sigismember(&mask, number) == 1 || is_never_blocked(number) ||
        !has_handler(number, flags)) {
      continue;
    }
    if ((flags & SA_RESTART) != 0) {
      restarts = true;
    } else {
      ends = true;
    }
  }
  if (ends) return restarts ? Interruption::kBoth : Interruption::kEnds;
  return restarts ? Interruption::kRestarts : Interruption::kNone;
}

}  // namespace verbena::os
