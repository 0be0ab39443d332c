#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/time.h"

namespace verbena::client {

// Decides who takes packets from the sockets: the program's threads while they poll, else the
// progress thread.
//
// A program that polls an empty CQ often needs no other thread: waking one for each packet would
// cost more than it brings.  The progress thread then sleeps for kCheckEvery and looks whether the
// program still polls.
//
// Some programs poll their CQ for a while and then watch their memory, into which a peer writes.
// Their packets would wait for up to kCheckEvery each time.  If the progress thread finds packets
// that such a program left, it takes them itself for a while, which doubles each time in a row.
//
// Pure: time comes in.  Each group of functions says which thread it is for.
class PollPolicy {
 public:
  static constexpr Duration kCheckEvery = std::chrono::milliseconds(1);
  // A thread that polls in vain this often in kCheckEvery is polling; one that polls less looks
  // once more before it sleeps.
  static constexpr std::uint32_t kPollsBusy = 64;
  // After so many polls in vain, some 50 us, the peer may be waiting for this processor.
  static constexpr std::uint32_t kPollsUntilYield = 64;
  // For how long the progress thread takes the packets of a program that polled and left some.
  static constexpr Duration kOwnershipMin = std::chrono::milliseconds(10);
  static constexpr Duration kOwnershipMax = std::chrono::seconds(1);

  // ---- any thread ----
  // The program polls an empty CQ.
  void polled() { polls_.fetch_add(1, std::memory_order_relaxed); }
  // The poll is over.  True: the thread should let other threads run.
  bool should_yield(bool found_packets) {
    if (found_packets) {
      polls_in_vain_.store(0, std::memory_order_relaxed);
      return false;
    }
    if (polls_in_vain_.fetch_add(1, std::memory_order_relaxed) < kPollsUntilYield) return false;
    polls_in_vain_.store(kPollsUntilYield, std::memory_order_relaxed);  // it never wraps
    return true;
  }
  // The program armed a CQ, so the progress thread must wait for packets from now on.  True: it
  // must be woken for that.
  bool armed() {
    polls_.store(0);
    return left_to_program_.load();
  }

  // ---- under the drive lock ----
  // A poll has found packets.  True: what they have made ready to be sent may wait for the
  // program's next post or poll.  Not so for a while after such a wait had to be ended by the
  // progress thread, since the program computes for long after a poll.
  bool may_defer() {
    if (!left_to_program_.load(std::memory_order_relaxed)) return false;
    if (no_deferrals_ > 0) --no_deferrals_;
    return no_deferrals_ == 0;
  }
  void deferred_was_sent() { pause_ = std::max(pause_ / 2, kPauseMin); }
  void deferral_expired() {
    no_deferrals_ = pause_;
    pause_ = std::min(4 * pause_, kPauseMax);
  }

  // ---- the progress thread's turn ----
  struct Turn {
    std::uint32_t polls = 0;       // in vain, of late
    bool left_to_program = false;  // the program polls and takes the packets itself
  };
  Turn begin_turn(Time now) {
    left_to_program_.store(true);  // before the count is read: a thread that arms after it wakes us
    // Turns that follow each other quickly, one for each packet say, count the polls together.
    std::uint32_t polls = polls_.load();
    if (polls >= kPollsBusy || now - counts_since_ >= kCheckEvery) {
      polls = polls_.exchange(0);
      counts_since_ = now;
    }
    const Turn turn{.polls = polls, .left_to_program = polls >= kPollsBusy && now >= owns_until_};
    left_to_program_.store(turn.left_to_program);
    return turn;
  }
  // True if the next turn would leave the sockets to the program.
  bool will_leave(Time now) const {
    return polls_.load(std::memory_order_relaxed) >= kPollsBusy && now >= owns_until_;
  }
  // The sockets said that packets are there.
  void packets_came() { packets_came_ = true; }
  // True if a look at the sockets may find something; it costs system calls.
  bool should_look() { return std::exchange(packets_came_, false) || was_left_to_program_; }
  // The progress thread has looked.
  void looked(const Turn& turn, bool found_packets, Time now) {
    if (found_packets && was_left_to_program_ && turn.polls == 0) extend_ownership(now);
  }
  void end_turn(const Turn& turn) {
    was_left_to_program_ = turn.left_to_program || (was_left_to_program_ && turn.polls != 0);
  }

 private:
  // Polls that find packets and defer nothing after a deferral has expired.
  static constexpr std::uint32_t kPauseMin = 64;
  static constexpr std::uint32_t kPauseMax = 16384;

  void extend_ownership(Time now) {
    ownership_ =
        now < owns_until_ + ownership_ ? std::min(2 * ownership_, kOwnershipMax) : kOwnershipMin;
    owns_until_ = now + ownership_;
  }

  std::atomic<std::uint32_t> polls_{0};          // in vain, since counts_since_
  std::atomic<std::uint32_t> polls_in_vain_{0};  // since a packet came
  std::atomic<bool> left_to_program_{false};
  Time counts_since_{};
  bool was_left_to_program_ = false;
  bool packets_came_ = false;
  std::uint32_t no_deferrals_ = 0;
  std::uint32_t pause_ = kPauseMin;
  Time owns_until_{};
  Duration ownership_{};
};

}  // namespace verbena::client
