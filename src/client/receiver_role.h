#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace verbena::client {

// Decides which thread waits for packets while nobody polls: the progress thread, or a thread of
// the program that is blocked until an event comes (the waiter), to which the role is lent.
//
// The role stays lent while the waiter handles its event.  The progress thread checks regularly
// whether the waiter waits again, and takes the role back if not.  While the waiter waits, the
// progress thread does not check.  So leave() returns true if the waiter must wake the progress
// thread.
//
// A thread that waits for events of connections leaves the role to a thread that waits for
// completions, because completions are more frequent.
//
// A signal handler of the program may jump out of a wait.  So the role has a number for each wait,
// and evict() takes it away from a waiter that does not receive its packets.
//
// Pure.  Each group of functions says which thread it is for.
class ReceiverRole {
 public:
  using Wait = std::uint32_t;  // 0: none
  enum class For : std::uint8_t { kCompletions, kConnections };
  struct TakenRole {
    Wait wait = 0;                      // 0: another waiter has the role
    bool from_progress_thread = false;  // wake it, so that it stops waiting for packets
    bool from_waiter = false;           // wake the waiter that had the role
  };

  // ---- a waiter ----
  TakenRole take(For events) {
    const Wait wait =
        waits_.fetch_add(4) | (events == For::kConnections ? kYieldsRole : kKeepsRole);
    Wait holder = 0;
    while (!holder_.compare_exchange_weak(holder, wait)) {
      if (holder != 0 && (holder % 4 == kKeepsRole || events == For::kConnections)) return {};
    }
    return {
        .wait = wait, .from_progress_thread = !lent_.exchange(true), .from_waiter = holder != 0};
  }
  // Returns false after evict(), and after another thread took the role.
  bool has(Wait wait) const { return wait != 0 && holder_.load() == wait; }
  // Ends a wait of a thread that will wait again.  Returns true if the progress thread must check
  // soon whether the thread does so.
  bool leave(Wait wait) {
    leave_count_.fetch_add(1);
    if (!holder_.compare_exchange_strong(wait, 0)) return false;
    return sleeps_without_checks_.load() && sleeps_without_checks_.exchange(false);
  }
  // Gives the role back to the progress thread, which must then be woken.  Returns false if the
  // waiter does not have the role any more.
  bool give_back(Wait wait) {
    if (!has(wait)) return false;
    lent_.store(false);
    return holder_.compare_exchange_strong(wait, 0);
  }
  // These functions count the waiters that wait without the role.
  void begin_wait_without() { waiters_without_role_.fetch_add(1); }
  void end_wait_without() { waiters_without_role_.fetch_sub(1); }
  bool another_waits() const { return waiters_without_role_.load() != 0; }

  // ---- any thread ----
  bool is_lent() const { return lent_.load(); }

  // ---- the progress thread ----
  enum class Holder : std::uint8_t {
    kProgressThread,  // also if the waiter has not waited again since the last check
    kWaiter,          // the waiter waits
    kAwayWaiter,      // the waiter handles its event: check again soon
  };
  Holder check() {
    sleeps_without_checks_.store(false);
    if (!lent_.load()) return Holder::kProgressThread;
    sleeps_without_checks_.store(
        true);  // stored before holder_ is read: a waiter that leaves later sees it
    if (holder_.load() != 0) return Holder::kWaiter;
    sleeps_without_checks_.store(false);
    const std::uint32_t times = leave_count_.load();
    if (std::exchange(checked_leave_count_, times) != times) return Holder::kAwayWaiter;
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
  static constexpr Wait kKeepsRole = 2, kYieldsRole = 3;

  std::atomic<bool> lent_{false};
  std::atomic<Wait> holder_{0};
  std::atomic<bool> sleeps_without_checks_{false};  // the progress thread sleeps without checks
  std::atomic<std::uint32_t> waits_{0};
  std::atomic<std::uint32_t> leave_count_{0};
  std::atomic<std::uint32_t> waiters_without_role_{0};
  std::uint32_t checked_leave_count_ = 0;  // times_left_ at the last check
};

}  // namespace verbena::client
