#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace verbena::client {

// Decides which thread waits for packets while no thread polls.  That thread has the role of the
// receiver.  The role belongs to the progress thread, which lends it to a thread of the program
// that is blocked until an event comes (the waiter).
//
// The role remains lent while the waiter handles its event.  The progress thread checks regularly
// whether the waiter waits again, and takes the role back if the waiter does not.  While the waiter
// waits, the progress thread sleeps without checks.  So end_wait() returns true if the waiter must
// wake the progress thread.
//
// A thread that waits for completions takes the role from a thread that waits for events of
// connections, because completions are more frequent.
//
// A signal handler of the program may jump out of a wait.  So each wait has a number, and evict()
// takes the role away from a waiter that does not receive its packets.
//
// Pure.  Each group of functions says which thread may call it.
class ReceiverRole {
 public:
  using Wait = std::uint32_t;  // the number of a wait; 0: none
  enum class For : std::uint8_t { kCompletions, kConnections };
  struct TakenRole {
    Wait wait = 0;                      // 0: another waiter has the role
    bool from_progress_thread = false;  // wake the progress thread: it must not wait for packets
    bool from_waiter = false;           // wake the waiter that had the role until now
  };

  // ---- a waiter ----
  // Takes the role for a new wait.
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
  // Returns true if the wait has the role.  evict() and other threads may have taken the role away.
  bool belongs_to(Wait wait) const { return wait != 0 && holder_.load() == wait; }
  // Ends a wait of a thread that will probably wait again.  The role remains lent.  Returns true if
  // the progress thread must check soon whether the thread waits again.
  bool end_wait(Wait wait) {
    ended_waits_.fetch_add(1);
    if (!holder_.compare_exchange_strong(wait, 0)) return false;
    return sleeps_without_checks_.load() && sleeps_without_checks_.exchange(false);
  }
  // Gives the role back to the progress thread, which must then be woken.  Returns false if the
  // waiter does not have the role any more.
  bool give_back(Wait wait) {
    if (!belongs_to(wait)) return false;
    lent_.store(false);
    return holder_.compare_exchange_strong(wait, 0);
  }
  // The next functions count the threads that wait for completions without the role.
  void begin_wait_without_role() { waiters_without_role_.fetch_add(1); }
  void end_wait_without_role() { waiters_without_role_.fetch_sub(1); }
  bool another_waits_without_role() const { return waiters_without_role_.load() != 0; }

  // ---- any thread ----
  bool is_lent() const { return lent_.load(); }

  // ---- the progress thread ----
  enum class Holder : std::uint8_t {
    kProgressThread,  // also if the waiter has not come back since the last check
    kWaiter,          // the waiter waits
    kAwayWaiter,      // the waiter handles its event, so check again soon
  };
  // Finds out who has the role.  Takes the role back from a waiter that does not come back.
  Holder check() {
    sleeps_without_checks_.store(false);
    if (!lent_.load()) return Holder::kProgressThread;
    // Stores sleeps_without_checks_ before it reads holder_, so that a waiter whose wait ends later
    // sees the new value.
    sleeps_without_checks_.store(true);
    if (holder_.load() != 0) return Holder::kWaiter;
    sleeps_without_checks_.store(false);
    const std::uint32_t ended_waits = ended_waits_.load();
    if (std::exchange(ended_waits_at_check_, ended_waits) != ended_waits) {
      return Holder::kAwayWaiter;
    }
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
  // The last two bits of a Wait are one of these values, so a Wait is never 0.
  static constexpr Wait kKeepsRole = 2;   // a wait for completions
  static constexpr Wait kYieldsRole = 3;  // a wait for connections

  std::atomic<bool> lent_{false};
  std::atomic<Wait> holder_{0};
  std::atomic<bool> sleeps_without_checks_{false};  // the progress thread sleeps without checks
  std::atomic<std::uint32_t> waits_{0};
  std::atomic<std::uint32_t> ended_waits_{0};  // the number of calls of end_wait()
  std::atomic<std::uint32_t> waiters_without_role_{0};
  std::uint32_t ended_waits_at_check_ = 0;  // ended_waits_ at the last check
};

}  // namespace verbena::client
