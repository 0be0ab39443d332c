#pragma once

#include <atomic>
#include <cstdint>
#include <span>

// Locks one direction of a stream for one of its ends.  All threads and processes of the end share
// the lock, which is in the end's memory (stream::EndState).
//
// If the owner dies, the next thread gets the lock, and its outcome() is kOwnerDied.  The kernel
// itself marks the lock at the owner's death: each thread keeps the locks that it holds in its
// robust list (get_robust_list(2)).  So no thread asks whether another one lives.  Thread numbers
// could not tell: they differ between PID namespaces, and a new thread may get an old number.
//
// A process that has the end can keep the lock without working, because it is stopped or hostile.
// So a thread waits for a limited time, and then the outcome is kGivenUp.
namespace verbena::preload {

class EndLock {
 public:
  enum class Outcome : std::uint8_t {
    kTaken,
    kOwnerDied,  // taken, but the previous owner died while it held the lock
    kNotTaken,   // this thread holds the lock already, and now runs a signal handler
    kGivenUp,    // another thread has held the lock for 10 s
  };

  // Takes the lock.  `memory` is a send_lock or receive_lock of a stream::EndState.  If `is_stuck`
  // is set, does not wait for another owner.  Sets it after kGivenUp, so that only the first call
  // of a process waits for a lock that is never released.
  EndLock(std::span<std::byte> memory, std::atomic<bool>& is_stuck);
  EndLock(const EndLock&) = delete;
  EndLock& operator=(const EndLock&) = delete;
  ~EndLock() { unlock(); }

  Outcome outcome() const { return outcome_; }
  void unlock();
  // Takes the lock again after unlock().  Then check outcome() again.
  void lock_again();

  // Forgets the locks of the parent's thread, because the forked child has none of them.
  static void after_fork_in_child();

 private:
  std::byte* memory_;
  std::atomic<bool>& is_stuck_;
  Outcome outcome_ = Outcome::kNotTaken;
};

}  // namespace verbena::preload
