#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "base/time.h"

namespace verbena::cm {

// When to repeat a message, and when to stop: doubling intervals with jitter, up to what spreads
// the repeats that are allowed over the patience.
//
// Invariants: the deadline is never later than `until_`, but after rest_until(); a peer that asks
// for time moves `until_`, at most to kExtensionMax after the start, and stops the count of
// repeats; so does, without the latter, renew().
class Retry {
 public:
  static constexpr Duration kFirstMin = std::chrono::milliseconds(20);
  static constexpr Duration kFirstMax = std::chrono::seconds(1);
  // Of a silent peer: a line that is there for half a second at a time is met.
  // Where repeats are counted, they are to last until the patience ends.
  static constexpr Duration kSilentMax = std::chrono::milliseconds(500);
  // Of one that has asked for time: seldom enough for its peace, and often enough for an answer
  // that a bad line has eaten three times of four.
  static constexpr Duration kIntervalMax = std::chrono::seconds(1);
  static constexpr Duration kExtensionMax = std::chrono::minutes(5);

  // Max CM Retries (vol1 12.7.27) has four bits.  A program that sets all of them asks for as many
  // repeats of its own requests as its time allows: with 15, on a line that loses half of all
  // packets in bursts, one connection of 100 was not made.  An answer to a peer keeps to the
  // number that the peer has named.
  static constexpr std::uint32_t kNoLimit = ~0u;
  static constexpr std::uint32_t repeats_of(std::uint8_t max_cm_retries) {
    return max_cm_retries < 15 ? max_cm_retries : kNoLimit;
  }

  enum class Due : std::uint8_t { kNotYet, kFirst, kRepeat, kGiveUp };

  // About four round trips to the first repeat (vol1 12.9.8.1 asks for a sound estimate, no more).
  void start(Time now, Duration round_trip, Duration give_up_after, std::uint32_t repeats_max,
             Random& random) {
    prepare(now, round_trip, give_up_after, repeats_max);
    go(now, random);
  }
  // The same for a message that waits, for go() or to be due; patience does not.
  void prepare(Time now, Duration round_trip, Duration give_up_after, std::uint32_t repeats_max) {
    started_ = since_ = now;
    deadline_ = until_ = now + give_up_after;
    expect(round_trip);
    repeats_left_ = repeats_max;
    tries_ = 0;
    extended_ = false;
  }
  void go(Time now, Random& random) {
    tries_ = 1;
    since_ = now;
    arm(now, random);
  }
  // While it waits, more may be known.  REQUIRES: tries() == 0.
  void expect(Duration round_trip) {
    interval_ = first_ = std::clamp(4 * round_trip, kFirstMin, kFirstMax);
  }
  void make_due(Time at) { deadline_ = std::min(at, until_); }
  void wait() { deadline_ = until_; }
  // While it waits, others were answered: the peer is there, and patience begins anew with that, up
  // to kExtensionMax after the start.  REQUIRES: tries() == 0.
  void renew(Time answered) {
    const Time until = std::min(answered + (until_ - since_), started_ + kExtensionMax);
    if (answered <= since_ || until <= until_) return;
    since_ = answered;
    deadline_ = until_ = until;
  }
  void stop() { deadline_ = kNever; }
  // No repeats, and a deadline all the same: the owner knows what for.
  void rest_until(Time end) { deadline_ = end; }

  // At or after the deadline: what now?
  Due due(Time now, Random& random) {
    if (now < deadline_) return Due::kNotYet;
    if (now >= until_) {
      stop();
      return Due::kGiveUp;
    }
    if (tries_ == 0) {
      go(now, random);
      return Due::kFirst;
    }
    if (repeats_left_ == 0 && !extended_) {
      deadline_ = until_;
      return Due::kNotYet;
    }
    if (!extended_) --repeats_left_;
    ++tries_;
    interval_ = std::min(interval_ * 2, extended_ ? kIntervalMax : longest(now));
    arm(now, random);
    return Due::kRepeat;
  }

  // The peer is there and needs so long.  Repeats go on, slowly: they bring its answer if that got
  // lost, which waiting alone would not.
  void extend(Time now, Duration wanted, Random& random) {
    if (deadline_ == kNever) return;
    extended_ = true;
    interval_ = kIntervalMax;
    until_ =
        std::clamp(now + wanted + kIntervalMax, until_, std::max(until_, started_ + kExtensionMax));
    arm(now, random);
  }

  // The peer asks again, so it is there and has not heard what was said: as many repeats once more.
  void asked_again(Time now, std::uint32_t repeats_max, Random& random) {
    if (deadline_ == kNever || repeats_left_ != 0) return;
    repeats_left_ = repeats_max;
    interval_ = std::min(interval_, longest(now));
    arm(now, random);
  }

  Time deadline() const { return deadline_; }
  std::uint32_t tries() const { return tries_; }
  // It was said as often as it may be, and was not answered in its time.
  bool is_spent() const { return tries_ != 0 && repeats_left_ == 0 && deadline_ == until_; }
  Duration spent(Time now) const { return now - started_; }
  // Since it was said for the first time.
  Duration since_said(Time now) const { return now - since_; }

 private:
  Duration longest(Time now) const {
    const Duration spread = (until_ - now) / (std::int64_t{repeats_left_} + 1);
    return std::max({kSilentMax, first_, spread});
  }
  // 7/8 to 9/8 of the interval.
  void arm(Time now, Random& random) {
    const auto eighth = interval_.count() / 8;
    const auto jitter =
        static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(2 * eighth) + 1));
    deadline_ = std::min(now + interval_ - Duration(eighth) + Duration(jitter), until_);
  }

  Time started_{};
  Time since_{};  // it was said for the first time, or its patience began while it waits
  Time until_{};
  Time deadline_ = kNever;
  Duration first_{};
  Duration interval_{};
  std::uint32_t repeats_left_ = 0;
  std::uint32_t tries_ = 0;
  bool extended_ = false;
};

}  // namespace verbena::cm
