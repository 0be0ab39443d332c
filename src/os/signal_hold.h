#pragma once

#include <csignal>

// Holds back signals in a thread that belongs to the program.
namespace verbena::os {

// Blocks signals in this thread during its lifetime.  A handler of the program may jump away and
// would leave our locks locked; and a handler that shall end a wait must not run before the wait.
// The kernel may still deliver a signal for the whole process to another thread.
class SignalHold {
 public:
  SignalHold();
  ~SignalHold();
  SignalHold(const SignalHold&) = delete;
  SignalHold& operator=(const SignalHold&) = delete;

  // Returns true if a pending signal's handler ends a wait with EINTR (no SA_RESTART, see
  // signal(7)).
  bool ends_wait() const;
  // Restores the signal mask.  Handlers of pending signals run now; they may jump away or end the
  // thread.
  void release();

 private:
  sigset_t before_;
  bool held_ = true;
};

}  // namespace verbena::os
