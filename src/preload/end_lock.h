#pragma once

#include <atomic>
#include <cstdint>
#include <span>

// Locks one direction of a stream for one of its ends, among all threads and processes that hold
// the end.  The lock lies in the stream's memory.  If the owner dies, the next thread gets the
// lock, and its outcome() is kOwnerDied.
namespace verbena::preload {

class EndLock {
 public:
  enum class Outcome : std::uint8_t {
    kTaken,
    kOwnerDied,  // taken; the previous owner has died while it held the lock
    kNotTaken,   // this thread holds the lock already, and is now in a signal handler
  };

  // Takes the lock.  `memory` is a lock's place in stream::Direction.
  explicit EndLock(std::span<std::byte> memory);
  EndLock(const EndLock&) = delete;
  EndLock& operator=(const EndLock&) = delete;
  ~EndLock() { unlock(); }

  Outcome outcome() const { return outcome_; }
  void unlock();
  // Takes the lock after unlock().  Look at outcome() again afterwards.
  void lock_again();

  // Forgets the thread's number, which differs in the child of a fork.
  static void after_fork_in_child();

 private:
  std::atomic<std::uint32_t>& word_;
  Outcome outcome_ = Outcome::kNotTaken;
};

}  // namespace verbena::preload
