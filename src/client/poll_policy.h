#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/time.h"
#include "client/receiver_role.h"

namespace verbena::client {

// Decides which threads receive packets from the sockets: the program's threads while they poll or
// wait for an event (ReceiverRole), and the progress thread at all other times.
//
// A program that often polls an empty CQ needs no other thread.  Waking a thread for each packet
// would cost more than it gains.  So the progress thread then sleeps for kCheckEvery and checks
// whether the program still polls.
//
// Some programs poll their CQ for a while and then watch their memory, into which a peer writes.
// Their packets would wait for up to kCheckEvery each time.  If the progress thread finds packets
// that such a program has not received, the progress thread receives all packets for some time
// (extend_ownership()).  If this happens again soon afterwards, that time is twice as long.
//
// Pure: the caller passes the time.  Each group of functions says which thread may call it.
class PollPolicy {
 public:
  static constexpr Duration kCheckEvery = std::chrono::milliseconds(1);
  // A program counts as polling if it makes this many empty polls (polls that find no packet)
  // within kCheckEvery.  A lower number would be too low: a program that sleeps until an event also
  // polls once more before each sleep.
  static constexpr std::uint32_t kPollsBusy = 64;
  // A poll that finds packets counts as this many additional empty polls.
  static constexpr std::uint32_t kPollsPerBatch = 8;
  // After this many empty polls, about 50 us, the thread yields, because the peer may be waiting
  // for this processor.
  static constexpr std::uint32_t kPollsUntilYield = 64;
  // The same for a thread that knows that others need its processor.
  static constexpr std::uint32_t kPollsUntilYieldIfBusy = 4;
  // These constants limit how long the progress thread receives all packets of a program that
  // polled and did not receive some.
  static constexpr Duration kOwnershipMin = std::chrono::milliseconds(10);
  static constexpr Duration kOwnershipMax = std::chrono::seconds(1);

  // ---- any thread ----
  // Counts a poll of an empty CQ.
  void polled() { polls_.fetch_add(1, std::memory_order_relaxed); }
  // Counts a poll that has found packets as several additional empty polls.  A program whose polls
  // always find packets makes fewer polls, but it receives its packets itself.
  void took_packets() { polls_.fetch_add(kPollsPerBatch, std::memory_order_relaxed); }
  // Counts the sleep of a poll as the polls that the thread would have made meanwhile.
  void poll_will_sleep() { polls_.fetch_add(kPollsBusy, std::memory_order_relaxed); }
  // Ends a poll.  Returns true if the thread should let other threads run.  `processor_is_busy`:
  // other threads need its processor, so more polls would only delay them.
  bool should_yield(bool found_packets, bool processor_is_busy = false) {
    if (found_packets) {
      empty_polls_.store(0, std::memory_order_relaxed);
      return false;
    }
    const std::uint32_t polls_max = processor_is_busy ? kPollsUntilYieldIfBusy : kPollsUntilYield;
    if (empty_polls_.fetch_add(1, std::memory_order_relaxed) < polls_max) return false;
    empty_polls_.store(kPollsUntilYield, std::memory_order_relaxed);  // prevents overflow
    return true;
  }
  // Returns true while the program's threads poll and receive the packets themselves.
  bool program_polls() const { return program_polls_.load(std::memory_order_relaxed); }
  // Returns true while the role of the receiver is lent to a thread that waits for an event.
  bool is_lent() const { return role_.is_lent(); }
  // Notes that the program armed a CQ, so that the progress thread waits for packets from now on.
  // Returns true if the progress thread must be woken for that.
  bool cq_armed() {
    polls_.store(0);
    return program_polls_.load();
  }

  // ---- a thread that waits for an event ----
  // Takes the role of the receiver, unless the progress thread retains the role for a while.
  ReceiverRole::TakenRole take_role(ReceiverRole::For events, Time now) {
    return now < owns_until_.load() ? ReceiverRole::TakenRole{} : role_.take(events);
  }
  ReceiverRole& role() { return role_; }

  // ---- under the drive lock ----
  // Returns true if the program polls, so that packets that became ready during a poll or a post
  // may wait for its next poll.  Returns false for a while after the progress thread had to send
  // such packets, because the program then seems to compute for long after a poll.
  bool may_defer() {
    return polling_is_confirmed_.load(std::memory_order_relaxed) && waiter_may_defer();
  }
  // Returns true if packets that became ready while a thread waited for an event may wait until
  // the program has seen that event.
  bool waiter_may_defer() {
    if (deferrals_to_skip_ == 0) return true;
    --deferrals_to_skip_;
    return false;
  }
  // Notes that the program's next post, poll or command sent the deferred packets.
  void deferred_was_sent() { pause_ = std::max(pause_ / 2, kPauseMin); }
  // Takes the role back from a waiter that gains nothing by the role.  The progress thread then
  // retains the role for a while.  Returns false if the waiter does not have the role any more.
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

  // ---- an iteration of the progress thread ----
  struct Iteration {
    std::uint32_t polls = 0;  // recent empty polls
    // The program polls or waits, and so receives the packets itself.
    bool program_receives = false;
    bool lent = false;  // a thread of the program has the role of the receiver
    // Check after kCheckEvery whether the program still receives packets.
    bool checks_again = false;
  };
  Iteration begin_iteration(Time now) {
    // Sets this flag before it reads polls_, so that a thread that arms a CQ later wakes this
    // thread.
    program_polls_.store(true);
    // Iterations may follow each other quickly, for example one for each packet.  Then several
    // iterations count their polls together.
    std::uint32_t polls = polls_.load();
    if (polls >= kPollsBusy || now - counts_since_ >= kCheckEvery) {
      polls = polls_.exchange(0);
      counts_since_ = now;
    }
    const bool polled = polls >= kPollsBusy && now >= owns_until_.load();
    const auto holder = role_.check();
    const bool lent = holder != ReceiverRole::Holder::kProgressThread;
    program_polls_.store(polled);
    polling_is_confirmed_.store(polled, std::memory_order_relaxed);
    return {.polls = polls,
            .program_receives = polled || lent,
            .lent = lent,
            .checks_again = polled || holder == ReceiverRole::Holder::kAwayWaiter};
  }
  // Returns true if the next iteration would let the program receive the packets, because it polls.
  bool will_let_program_receive(Time now) const {
    return polls_.load(std::memory_order_relaxed) >= kPollsBusy && now >= owns_until_.load();
  }
  // Notes that the sockets or lanes have packets.
  void packets_came() { packets_came_ = true; }
  // Returns true if polling the sockets, which costs system calls, may find something.
  bool should_poll_sockets() { return std::exchange(packets_came_, false) || program_received_; }
  // Notes that the progress thread has polled the sockets.
  void sockets_polled(const Iteration& iteration, bool found_packets, Time now) {
    if (found_packets && program_received_ && !iteration.program_receives && iteration.polls == 0) {
      extend_ownership(now);
    }
  }
  // Notes that the iteration has ended.
  void end_iteration(const Iteration& iteration) {
    program_received_ = iteration.program_receives || (program_received_ && iteration.polls != 0);
  }

 private:
  // After a deferral has expired, the next polls that find packets defer nothing.  These constants
  // limit the number of such polls.
  static constexpr std::uint32_t kPauseMin = 64;
  static constexpr std::uint32_t kPauseMax = 16384;

  // Lets the progress thread receive all packets for some time, longer each time this happens again
  // soon.
  void extend_ownership(Time now) {
    const bool soon_again = now < owns_until_.load() + ownership_;
    ownership_ = soon_again ? std::min(2 * ownership_, kOwnershipMax) : kOwnershipMin;
    owns_until_.store(now + ownership_);
  }

  std::atomic<std::uint32_t> polls_{0};        // the number of empty polls since counts_since_
  std::atomic<std::uint32_t> empty_polls_{0};  // the number of empty polls since the last packet
  std::atomic<bool> program_polls_{false};     // also true while begin_iteration() decides
  // begin_iteration() has decided that the program polls.
  std::atomic<bool> polling_is_confirmed_{false};
  Time counts_since_{};
  bool program_received_ = false;  // the program received the packets in recent iterations
  bool packets_came_ = false;
  std::uint32_t deferrals_to_skip_ = 0;   // may_defer() refuses this number of deferrals
  std::uint32_t pause_ = kPauseMin;       // the next value of deferrals_to_skip_
  std::atomic<Time> owns_until_{Time{}};  // until then the progress thread receives all packets
  Duration ownership_{};                  // the length of the last such time
  ReceiverRole role_{};
};

}  // namespace verbena::client
