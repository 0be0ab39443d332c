#pragma once

#include <atomic>
#include <cstdint>
#include <span>

// Locks one direction of a stream for one of its ends.  All threads and processes of the end share
// the lock, which is in the stream's memory.  If the owner dies, the next thread gets the lock, and
// its outcome() is kOwnerDied.
namespace verbena::preload {

class EndLock {
 public:
  enum class Outcome : std::uint8_t {
    kTaken,
    kOwnerDied,  // taken, but the previous owner died while it held the lock
    kNotTaken,   // this thread holds the lock already, and now runs a signal handler
  };

  // Takes the lock.  `memory` is a send_lock or receive_lock of a stream::Direction.
  explicit EndLock(std::span<std::byte> memory);
  EndLock(const EndLock&) = delete;
  EndLock& operator=(const EndLock&) = delete;
  ~EndLock() { unlock(); }

  Outcome outcome() const { return outcome_; }
  void unlock();
  // Takes the lock again after unlock().  Then check outcome() again.
  void lock_again();

  // Clears the cached thread number, because a forked child has another one.
  static void after_fork_in_child();

 private:
  std::atomic<std::uint32_t>& word_;
  Outcome outcome_ = Outcome::kNotTaken;
};

}  // namespace verbena::preload
