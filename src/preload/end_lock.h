#pragma once

#include <atomic>
#include <cstdint>
#include <span>

// Locks one direction of a stream for one of its ends, among all threads and processes that hold
// the end.  The lock lies in the stream's memory.  If its owner dies, the next one gets the lock,
// and its taken() returns kOwnerDied.
namespace verbena::preload {

class EndLock {
 public:
  enum class Taken : std::uint8_t {
    kTaken,
    kOwnerDied,  // taken; the previous owner has died while it held the lock
    kOwn,        // not taken: this thread holds it already, and is now in a signal handler
  };

  // Takes the lock.  `memory` is a lock's place in stream::Direction.
  explicit EndLock(std::span<std::byte> memory);
  EndLock(const EndLock&) = delete;
  EndLock& operator=(const EndLock&) = delete;
  ~EndLock() { unlock(); }

  Taken taken() const { return taken_; }
  void unlock();
  // Takes the lock after unlock().  Look at taken() again afterwards.
  void lock_again();

  // Forgets the thread's number, which differs in the child of a fork.
  static void after_fork_in_child();

 private:
  std::atomic<std::uint32_t>& word_;
  Taken taken_ = Taken::kOwn;
};

}  // namespace verbena::preload
