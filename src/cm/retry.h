#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "base/time.h"

namespace verbena::cm {

// Decides when to repeat a message, and when to give up.  Intervals double, with jitter.  If the
// number of repeats is limited, the intervals may grow so that the repeats last for the whole
// timeout.
//
// If a message has to wait before it is sent, prepare() starts its timeout, so that the timeout
// includes the wait.  The owner remembers whether the message was sent.
//
// Invariants:
//  * The deadline is never later than `timeout_end_`, except after set_deadline() and stop().
//  * `timeout_end_` moves only when the peer asks for time (extend()) or answers another request
//    (renew()), at most to kExtensionMax after the start.  After extend() the number of repeats has
//    no limit.
class Retry {
 public:
  static constexpr Duration kFirstIntervalMin = std::chrono::milliseconds(20);
  static constexpr Duration kFirstIntervalMax = std::chrono::seconds(1);
  // Limits the interval while the peer is silent, so that a repeat gets through even if the network
  // works for only half a second at a time.  The interval may be longer if a limited number of
  // repeats must last until the timeout.
  static constexpr Duration kSilentIntervalMax = std::chrono::milliseconds(500);
  // Limits the interval once the peer has asked for time: about one repeat a second, so that a
  // slow peer is not flooded, but often enough even if three of four answers get lost.
  static constexpr Duration kIntervalMax = std::chrono::seconds(1);
  static constexpr Duration kExtensionMax = std::chrono::minutes(5);

  // Max CM Retries (vol1 12.7.27) has four bits, but 15 repeats are not always enough: on a line
  // that loses half of all packets in bursts, one connection of 100 failed.  So the active side
  // treats 15 as no limit for its LAPs and DREQs.  Only the timeout limits the repeats of its REQ.
  // The passive side repeats its messages as often as the REQ allows.
  static constexpr std::uint32_t kNoLimit = ~0u;
  static constexpr std::uint32_t repeats_of(std::uint8_t max_cm_retries) {
    return max_cm_retries < 15 ? max_cm_retries : kNoLimit;
  }

  enum class Action : std::uint8_t { kWait, kRepeat, kGiveUp };

  // Starts the timers of a message that is sent now.  The first repeat comes after about four round
  // trips (vol1 12.9.8.1 asks only for a sound estimate).
  void start(Time now, Duration round_trip, Duration give_up_after, std::uint32_t repeats_max,
             Random& random) {
    prepare(now, round_trip, give_up_after, repeats_max);
    note_sent(now, random);
  }
  // Starts the timeout of a message that will be sent later.  Call note_sent() when it is sent.
  void prepare(Time now, Duration round_trip, Duration give_up_after, std::uint32_t repeats_max) {
    started_ = wait_start_ = now;
    deadline_ = timeout_end_ = now + give_up_after;
    set_round_trip(round_trip);
    repeats_left_ = repeats_max;
    tries_ = 0;
    extended_ = false;
  }
  void note_sent(Time now, Random& random) {
    tries_ = 1;
    wait_start_ = now;
    arm(now, random);
  }
  // Uses a better estimate of the round trip.  REQUIRES: note_sent() was not called yet.
  void set_round_trip(Duration round_trip) {
    interval_ = first_interval_ = std::clamp(4 * round_trip, kFirstIntervalMin, kFirstIntervalMax);
  }
  // The next three functions REQUIRE: note_sent() was not called yet.
  //
  // Sets the deadline to `at`, or to the timeout if that is earlier.  Then the owner sends the
  // message, or decides again when to send it.
  void set_due(Time at) { deadline_ = std::min(at, timeout_end_); }
  // Postpones the sending until the timeout.
  void postpone_to_timeout() { deadline_ = timeout_end_; }
  // Restarts the timeout at `answer_time`, when the peer answered another request.  The timeout
  // ends at the latest kExtensionMax after the start.
  void renew(Time answer_time) {
    const Time until =
        std::min(answer_time + (timeout_end_ - wait_start_), started_ + kExtensionMax);
    if (answer_time <= wait_start_ || until <= timeout_end_) return;
    wait_start_ = answer_time;
    deadline_ = timeout_end_ = until;
  }
  void stop() { deadline_ = kNever; }
  // Sets the deadline for the owner's own purpose.  No message is repeated.
  void set_deadline(Time end) { deadline_ = end; }

  // Decides whether to wait, to repeat the message that was sent, or to give up.
  Action next_action(Time now, Random& random) {
    if (now < deadline_) return Action::kWait;
    if (now >= timeout_end_) {
      stop();
      return Action::kGiveUp;
    }
    if (repeats_left_ == 0 && !extended_) {
      deadline_ = timeout_end_;
      return Action::kWait;
    }
    if (!extended_) --repeats_left_;
    ++tries_;
    interval_ = std::min(interval_ * 2, extended_ ? kIntervalMax : interval_max(now));
    arm(now, random);
    return Action::kRepeat;
  }

  // Extends the timeout, because the peer asked for this much time (MRA).  Slow repeats go on,
  // since only a repeat brings back an answer that got lost.
  void extend(Time now, Duration extension, Random& random) {
    if (deadline_ == kNever) return;
    extended_ = true;
    interval_ = kIntervalMax;
    timeout_end_ = std::clamp(now + extension + kIntervalMax, timeout_end_,
                              std::max(timeout_end_, started_ + kExtensionMax));
    arm(now, random);
  }

  // Allows another `repeats_max` repeats if none is left.  The peer has repeated its request, so it
  // is alive and missed the answer.
  void peer_repeated(Time now, std::uint32_t repeats_max, Random& random) {
    if (deadline_ == kNever || repeats_left_ != 0) return;
    repeats_left_ = repeats_max;
    interval_ = std::min(interval_, interval_max(now));
    arm(now, random);
  }

  Time deadline() const { return deadline_; }
  bool has_timed_out(Time now) const { return now >= timeout_end_; }
  // Returns how often the message was sent.
  std::uint32_t tries() const { return tries_; }
  // Returns true if all repeats were sent, and the time for an answer to the last one is over.
  bool is_exhausted() const { return repeats_left_ == 0 && deadline_ == timeout_end_; }
  Duration spent(Time now) const { return now - started_; }
  // Returns the time since the first send.
  Duration since_first_send(Time now) const { return now - wait_start_; }

 private:
  Duration interval_max(Time now) const {
    const Duration spread = (timeout_end_ - now) / (std::int64_t{repeats_left_} + 1);
    return std::max({kSilentIntervalMax, first_interval_, spread});
  }
  // Sets the deadline after 7/8 to 9/8 of the interval.
  void arm(Time now, Random& random) {
    const auto eighth = interval_.count() / 8;
    const auto jitter =
        static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(2 * eighth) + 1));
    deadline_ = std::min(now + interval_ - Duration(eighth) + Duration(jitter), timeout_end_);
  }

  Time started_{};
  Time wait_start_{};  // when the message was first sent; until then, when its timeout began
  Time timeout_end_{};
  Time deadline_ = kNever;
  Duration first_interval_{};
  Duration interval_{};
  std::uint32_t repeats_left_ = 0;
  std::uint32_t tries_ = 0;
  bool extended_ = false;
};

}  // namespace verbena::cm
