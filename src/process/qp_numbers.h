#pragma once

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "ipc/messages.h"

namespace verbena::process {

// The QP numbers that a program has leased, and which of them a new QP may have.  One that a peer
// may know rests: while the peer's end of the connection is in timewait (vol1 12.9.8.4) it may
// refuse the next one as stale, though ours does not; and packets may be under way.
//
// Invariants: a number is in here at most as often as it was given back; fresh ones are of the last
// range.
class QpNumbers {
 public:
  // A peer concludes from our REQs, whose ACK timeout is 2.1 s, that packets live half of that: its
  // timewait is the 2.1 s and its own ACK delay, and may begin some repeats of DREQ later.  (A
  // program that has asked for a longer ACK timeout may be refused nevertheless.)
  static constexpr Duration kRest = std::chrono::seconds(4);

  // A range, all of whose numbers are new.  They are given out in an order that nobody can guess,
  // so that who has seen one QP's number does not know its neighbours'.
  void add_range(std::uint16_t range, Random& random) {
    ranges_.push_back(range);
    told_.emplace_back();
    fresh_.resize(ipc::kLeaseQpns);
    std::iota(fresh_.begin(), fresh_.end(), range * ipc::kLeaseQpns);
    for (std::size_t left = fresh_.size(); left > 1; --left) {
      std::swap(fresh_[left - 1], fresh_[random.below(left)]);
    }
  }
  void clear() {
    ranges_.clear();
    told_.clear();
    ready_.clear();
    resting_.clear();
    fresh_.clear();
  }
  std::span<const std::uint16_t> ranges() const { return ranges_; }
  bool has_leased(Qpn qpn) const { return place_of(qpn) < ranges_.size(); }

  // One that may be used now: a new one, or of those that were given back the first. `in_use(Qpn)`:
  // a QP has it.
  std::optional<Qpn> take(Time now, auto&& in_use) {
    while (!fresh_.empty()) {
      const Qpn qpn{fresh_.back()};
      fresh_.pop_back();
      if (!in_use(qpn)) return qpn;
    }
    while (!ready_.empty()) {
      const Qpn qpn = ready_.front();
      ready_.pop_front();
      if (!in_use(qpn)) return qpn;
    }
    if (resting_.empty() || resting_.front().until > now) return std::nullopt;
    return take_resting(in_use);
  }
  // The same, without its rest: better than none.
  std::optional<Qpn> take_resting(auto&& in_use) {
    while (!resting_.empty()) {
      const Qpn qpn = resting_.front().qpn;
      resting_.pop_front();
      if (!in_use(qpn)) return qpn;
    }
    return std::nullopt;
  }
  // A peer may hear of it from now on.
  void told(Qpn qpn) {
    const std::size_t place = place_of(qpn);
    if (place < ranges_.size()) told_[place].set(qpn.value % ipc::kLeaseQpns);
  }
  // Of a QP that is gone.  Not kept if the range is another agent's.
  void give_back(Qpn qpn, Time now) {
    const std::size_t place = place_of(qpn);
    if (place == ranges_.size()) return;
    auto told = told_[place][qpn.value % ipc::kLeaseQpns];
    if (told) {
      resting_.push_back({qpn, now + kRest});
    } else {
      ready_.push_back(qpn);
    }
    told = false;
  }

 private:
  struct Resting {
    Qpn qpn{};
    Time until{};
  };

  // Of its range in ranges_; their number if it is in none of them.
  std::size_t place_of(Qpn qpn) const {
    const auto at = std::ranges::find(ranges_, qpn.value / ipc::kLeaseQpns);
    return static_cast<std::size_t>(at - ranges_.begin());
  }

  std::vector<std::uint16_t> ranges_;
  std::vector<std::bitset<ipc::kLeaseQpns>> told_;  // of each range
  std::vector<std::uint32_t> fresh_;                // of the last range; the last one is the next
  std::deque<Qpn> ready_;                           // given back, and no peer has heard of them
  std::deque<Resting> resting_;
};

}  // namespace verbena::process
