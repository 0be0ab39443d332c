#pragma once

#include <array>
#include <csignal>
#include <cstdint>

// Blocks signals in a thread that belongs to the program.
namespace verbena::os {

// The kernel raises these signals for a fault of the thread itself.  If the thread blocks such a
// signal, the fault kills the program, although the program may have a handler.
inline constexpr std::array kFaultSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};

// Blocks all signals except those of faults and SIGABRT in this thread, until release() or the
// destructor.  There are two reasons.  If a handler of the program jumps away (longjmp), it leaves
// our locks locked.  If a handler is to end a wait, it must not run before the wait begins.  The
// kernel may still deliver a signal for the whole process to another thread.
class SignalBlock {
 public:
  SignalBlock();
  ~SignalBlock();
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

  // Returns true if a pending signal's handler ends a wait with EINTR (no SA_RESTART, see
  // signal(7)).
  bool would_end_wait() const;
  // Returns true if a pending signal's handler will run at release().
  bool is_pending() const;
  // Returns the signal mask that was set before.  A call that waits, such as ppoll(2), can use this
  // mask.
  const sigset_t& previous_mask() const { return previous_mask_; }
  // Restores the signal mask.  Handlers of pending signals run now; they may jump away or end the
  // thread.
  void release();

 private:
  // Returns true if is_wanted(flags) is true for the handler of a pending signal.
  bool has_pending(bool (*is_wanted)(int flags)) const;

  sigset_t previous_mask_;
  bool is_blocking_ = true;
};

// Tells how the program's signal handlers affect a waiting read(2).  After a handler with
// SA_RESTART the read continues; any other handler ends the read with EINTR.
enum class Interruption : std::uint8_t { kNone, kRestarts, kEnds, kBoth };
// Considers all signals that `mask` does not block, except those that SignalBlock never blocks.
// Makes a system call for each signal, which takes some microseconds.
Interruption handler_effect_on_read(const sigset_t& mask);

}  // namespace verbena::os
