#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace verbena::client {

// Decides which thread waits for packets while nobody polls: the progress thread, or a thread of
// the program that is blocked until an event comes (the waiter), to which the role is lent.
//
// The role stays lent while the waiter is away with its event.  The progress thread checks
// regularly whether it comes back, and takes the role back if not.  While the waiter waits, the
// progress thread does not check.  So leave() returns true if the waiter must wake the progress
// thread.
//
// A thread that waits for events of connections leaves the role to a thread that waits for
// completions, because completions are more frequent.
//
// A signal handler of the program may jump out of a wait.  So the role has a number for each wait,
// and evict() takes it away from a waiter that does not look at its packets.
//
// Pure.  Each group of functions says which thread it is for.
class ReceiverRole {
 public:
  using Wait = std::uint32_t;  // 0: none
  enum class For : std::uint8_t { kCompletions, kConnections };
  struct Taken {
    Wait wait = 0;                      // 0: another waiter has the role
    bool from_progress_thread = false;  // wake it, so that it stops waiting for packets
    bool from_waiter = false;           // wake the waiter that had the role
  };

  // ---- a waiter ----
  Taken take(For events) {
    const Wait wait = waits_.fetch_add(4) | (events == For::kConnections ? kLeaves : kStays);
    Wait holder = 0;
    while (!holder_.compare_exchange_weak(holder, wait)) {
      if (holder != 0 && (holder % 4 == kStays || events == For::kConnections)) return {};
    }
    return {
        .wait = wait, .from_progress_thread = !lent_.exchange(true), .from_waiter = holder != 0};
  }
  // Returns false after evict(), and after another thread took the role.
  bool has(Wait wait) const { return wait != 0 && holder_.load() == wait; }
  // Ends a wait.  The thread will wait again.  Returns true if the progress thread must check soon
  // whether it does.
  bool leave(Wait wait) {
    times_left_.fetch_add(1);
    if (!holder_.compare_exchange_strong(wait, 0)) return false;
    return sleeps_.load() && sleeps_.exchange(false);
  }
  // Gives the role back to the progress thread, which must then be woken.  Returns false if the
  // waiter does not have it any more.
  bool give_back(Wait wait) {
    if (!has(wait)) return false;
    lent_.store(false);
    return holder_.compare_exchange_strong(wait, 0);
  }
  // Count the waiters that wait without the role.
  void wait_without() { others_.fetch_add(1); }
  void waited_without() { others_.fetch_sub(1); }
  bool others_wait() const { return others_.load() != 0; }

  // ---- any thread ----
  bool is_lent() const { return lent_.load(); }

  // ---- the progress thread ----
  enum class Holder : std::uint8_t {
    kProgressThread,  // also if the waiter has not come back since the last check
    kWaiter,          // it waits
    kAwayWaiter,      // check again soon
  };
  Holder check() {
    sleeps_.store(false);
    if (!lent_.load()) return Holder::kProgressThread;
    sleeps_.store(true);  // stored before holder_ is read: a waiter that leaves later sees it
    if (holder_.load() != 0) return Holder::kWaiter;
    sleeps_.store(false);
    const std::uint32_t times = times_left_.load();
    if (std::exchange(checked_, times) != times) return Holder::kAwayWaiter;
    // Stores lent_ before it reads holder_, so that a waiter that takes the role later sees lent_.
    lent_.store(false);
    if (holder_.load() == 0) return Holder::kProgressThread;
    lent_.store(true);
    return Holder::kAwayWaiter;
  }
  // Takes the role away from the waiter that has it, if any.
  void evict() {
    lent_.store(false);
    holder_.store(0);
  }

 private:
  // The last two bits of a Wait are one of these, so a Wait is never 0.
  static constexpr Wait kStays = 2, kLeaves = 3;

  std::atomic<bool> lent_{false};
  std::atomic<Wait> holder_{0};
  std::atomic<bool> sleeps_{false};  // the progress thread sleeps without checks
  std::atomic<std::uint32_t> waits_{0};
  std::atomic<std::uint32_t> times_left_{0};
  std::atomic<std::uint32_t> others_{0};
  std::uint32_t checked_ = 0;  // times_left_ at the last check
};

}  // namespace verbena::client
