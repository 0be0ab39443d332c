#pragma once

#include <csignal>
#include <cstdint>

// Holds back signals in a thread that belongs to the program.
namespace verbena::os {

// Blocks signals in this thread during its lifetime.  There are two reasons.  A handler of the
// program may jump away and would leave our locks locked.  And a handler that shall end a wait must
// not run before the wait.  The kernel may still deliver a signal for the whole process to another
// thread.
class SignalHold {
 public:
  SignalHold();
  ~SignalHold();
  SignalHold(const SignalHold&) = delete;
  SignalHold& operator=(const SignalHold&) = delete;

  // Returns true if a pending signal's handler ends a wait with EINTR (no SA_RESTART, see
  // signal(7)).
  bool ends_wait() const;
  // Returns true if a pending signal's handler will run at release().
  bool is_pending() const;
  // Returns the mask that was valid before, for a call that waits with it, such as ppoll(2).
  const sigset_t& mask_before() const { return before_; }
  // Restores the signal mask.  Handlers of pending signals run now; they may jump away or end the
  // thread.
  void release();

 private:
  // Returns true if a pending signal has a handler whose flags `select` accepts.
  bool has_pending(bool (*select)(int flags)) const;

  sigset_t before_;
  bool held_ = true;
};

// Tells the effect of handlers on a read(2) that waits, for the signals that a mask lets through.
// A handler with SA_RESTART lets the read go on; any other handler ends the read with EINTR.
enum class Interruption : std::uint8_t { kNone, kRestarts, kEnds, kBoth };
// Asks the kernel for each signal, which takes some microseconds.  Leaves out signals of faults.
Interruption interruption_by_handlers(const sigset_t& mask);

}  // namespace verbena::os
