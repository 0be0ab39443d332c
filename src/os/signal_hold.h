#pragma once

#include <csignal>

// Signals and a thread that is not ours.
namespace verbena::os {

// Keeps signals from this thread.  A program's handler may jump away, and would leave locks behind;
// and one that is to end a wait must not run where nobody waits.  A signal to the whole process may
// go to another thread meanwhile, as it may at any time.
class SignalHold {
 public:
  SignalHold();
  ~SignalHold();
  SignalHold(const SignalHold&) = delete;
  SignalHold& operator=(const SignalHold&) = delete;

  // One has come whose handler ends a wait with EINTR (without SA_RESTART, signal(7)).
  bool ends_wait() const;
  // Handlers of what has come run now; they may jump away or end the thread.
  void release();

 private:
  sigset_t before_;
  bool held_ = true;
};

}  // namespace verbena::os
