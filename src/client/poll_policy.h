#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/time.h"
#include "client/receiver_role.h"

namespace verbena::client {

// Decides who takes packets from the sockets: the program's threads while they poll or wait for an
// event (ReceiverRole), else the progress thread.
//
// A program that polls an empty CQ often needs no other thread: waking a thread for each packet
// would cost more than it gains.  The progress thread then sleeps for kCheckEvery and checks
// whether the program still polls.
//
// Some programs poll their CQ for a while and then watch their memory, into which a peer writes.
// Their packets would wait for up to kCheckEvery each time.  If the progress thread finds packets
// that such a program left, it takes all packets for a while (extend_ownership()).  If this happens
// again soon afterwards, the while is twice as long.
//
// Pure: time comes in.  Each group of functions says which thread it is for.
class PollPolicy {
 public:
  static constexpr Duration kCheckEvery = std::chrono::milliseconds(1);
  // A thread counts as polling if it makes this many empty polls (polls that find no packet) in
  // kCheckEvery.  A thread that polls less often polls once more before it sleeps.
  static constexpr std::uint32_t kPollsBusy = 64;
  static constexpr std::uint32_t kPollsPerBatch = 8;
  // After this many empty polls, about 50 us, the thread yields: the peer may be waiting for this
  // processor.
  static constexpr std::uint32_t kPollsUntilYield = 64;
  // These limit how long the progress thread takes the packets of a program that polled and left
  // some.
  static constexpr Duration kOwnershipMin = std::chrono::milliseconds(10);
  static constexpr Duration kOwnershipMax = std::chrono::seconds(1);

  // ---- any thread ----
  // Counts a poll of an empty CQ.
  void polled() { polls_.fetch_add(1, std::memory_order_relaxed); }
  // Counts a poll that has found packets as several polls.  A program that always finds packets
  // polls less often, but takes its packets itself.
  void took_packets() { polls_.fetch_add(kPollsPerBatch, std::memory_order_relaxed); }
  // Ends a poll.  Returns true if the thread should let other threads run.
  bool should_yield(bool found_packets) {
    if (found_packets) {
      empty_polls_.store(0, std::memory_order_relaxed);
      return false;
    }
    if (empty_polls_.fetch_add(1, std::memory_order_relaxed) < kPollsUntilYield) return false;
    empty_polls_.store(kPollsUntilYield, std::memory_order_relaxed);  // prevents overflow
    return true;
  }
  // Returns true while threads that poll take the packets.
  bool is_left_to_polls() const { return left_to_polls_.load(std::memory_order_relaxed); }
  // Returns true while a thread that waits for an event has the role of the progress thread.
  bool is_lent() const { return role_.is_lent(); }
  // Notes that the program armed a CQ, so that the progress thread waits for packets from now on.
  // Returns true if the progress thread must be woken for that.
  bool cq_armed() {
    polls_.store(0);
    return left_to_polls_.load();
  }

  // ---- a thread that waits for an event ----
  // Takes the role of the progress thread, unless the progress thread keeps it for a while.
  ReceiverRole::TakenRole take_role(ReceiverRole::For events, Time now) {
    return now < owns_until_.load() ? ReceiverRole::TakenRole{} : role_.take(events);
  }
  ReceiverRole& role() { return role_; }

  // ---- under the drive lock ----
  // Returns true if packets that became ready during a poll, or a post, may wait for the program's
  // next poll.  Returns false for a while after the progress thread had to send such packets,
  // because then the program computes for long after a poll.
  bool may_defer() { return leaves_sockets_.load(std::memory_order_relaxed) && waiter_may_defer(); }
  // Returns true if packets that became ready while a thread waited for an event may wait until
  // the program has seen that event.
  bool waiter_may_defer() {
    if (deferrals_to_skip_ == 0) return true;
    --deferrals_to_skip_;
    return false;
  }
  // Notes that the program's next post, poll or command sent the deferred packets.
  void deferred_was_sent() { pause_ = std::max(pause_ / 2, kPauseMin); }
  // Takes the role back from a waiter that gains nothing by the role, and keeps it for a while.
  // Returns false if the waiter does not have the role any more.
  bool take_back(ReceiverRole::Wait wait, Time now) {
    if (!role_.give_back(wait)) return false;
    extend_ownership(now);
    return true;
  }
  // Notes that the progress thread had to send the deferred packets.
  void deferral_expired() {
    deferrals_to_skip_ = pause_;
    pause_ = std::min(2 * pause_, kPauseMax);
  }

  // ---- the progress thread's turn ----
  struct Turn {
    std::uint32_t polls = 0;       // recent empty polls
    bool left_to_program = false;  // the program polls or waits, and takes the packets itself
    bool lent = false;             // the program waits, with the role
    bool checks_again = false;  // check after kCheckEvery whether the program still takes packets
  };
  Turn begin_turn(Time now) {
    // Sets this before it reads polls_, so that a thread that arms a CQ later wakes this thread.
    left_to_polls_.store(true);
    // Turns may follow each other quickly, for example one for each packet.  Such turns count the
    // polls together.
    std::uint32_t polls = polls_.load();
    if (polls >= kPollsBusy || now - counts_since_ >= kCheckEvery) {
      polls = polls_.exchange(0);
      counts_since_ = now;
    }
    const bool polled = polls >= kPollsBusy && now >= owns_until_.load();
    const auto holder = role_.check();
    const bool lent = holder != ReceiverRole::Holder::kProgressThread;
    left_to_polls_.store(polled);
    leaves_sockets_.store(polled, std::memory_order_relaxed);
    return {.polls = polls,
            .left_to_program = polled || lent,
            .lent = lent,
            .checks_again = polled || holder == ReceiverRole::Holder::kAwayWaiter};
  }
  // Returns true if the next turn would leave the sockets to the program.
  bool will_leave_sockets(Time now) const {
    return polls_.load(std::memory_order_relaxed) >= kPollsBusy && now >= owns_until_.load();
  }
  // Notes that the sockets have packets.
  void packets_came() { packets_came_ = true; }
  // Returns true if polling the sockets, which costs system calls, may find something.
  bool should_poll_sockets() { return std::exchange(packets_came_, false) || was_left_to_program_; }
  // Notes that the progress thread has polled the sockets.
  void sockets_polled(const Turn& turn, bool found_packets, Time now) {
    if (found_packets && was_left_to_program_ && !turn.left_to_program && turn.polls == 0) {
      extend_ownership(now);
    }
  }
  void end_turn(const Turn& turn) {
    was_left_to_program_ = turn.left_to_program || (was_left_to_program_ && turn.polls != 0);
  }

 private:
  // After a deferral has expired, this number of polls that find packets defer nothing.
  static constexpr std::uint32_t kPauseMin = 64;
  static constexpr std::uint32_t kPauseMax = 16384;

  void extend_ownership(Time now) {
    const bool soon_again = now < owns_until_.load() + ownership_;
    ownership_ = soon_again ? std::min(2 * ownership_, kOwnershipMax) : kOwnershipMin;
    owns_until_.store(now + ownership_);
  }

  std::atomic<std::uint32_t> polls_{0};        // empty polls since counts_since_
  std::atomic<std::uint32_t> empty_polls_{0};  // since a packet came
  std::atomic<bool> left_to_polls_{false};     // also while begin_turn() decides
  std::atomic<bool> leaves_sockets_{false};    // the last decision of begin_turn()
  Time counts_since_{};
  bool was_left_to_program_ = false;
  bool packets_came_ = false;
  std::uint32_t deferrals_to_skip_ = 0;
  std::uint32_t pause_ = kPauseMin;
  std::atomic<Time> owns_until_{Time{}};
  Duration ownership_{};
  ReceiverRole role_{};
};

}  // namespace verbena::client
