#pragma once

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

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

  // A range, all of whose numbers are new; they begin with the one at `first`.
  void add_range(std::uint16_t range, std::uint32_t first) {
    ranges_.push_back(range);
    told_.emplace_back();
    first_ = first;
    fresh_ = ipc::kLeaseQpns;
  }
  void clear() {
    ranges_.clear();
    told_.clear();
    ready_.clear();
    resting_.clear();
    fresh_ = 0;
  }
  std::span<const std::uint16_t> ranges() const { return ranges_; }
  bool has_leased(Qpn qpn) const { return place_of(qpn) < ranges_.size(); }

  // One that may be used now: a new one, or of those that were given back the first. `in_use(Qpn)`:
  // a QP has it.
  std::optional<Qpn> take(Time now, auto&& in_use) {
    while (fresh_ > 0) {
      const std::uint32_t n = (first_ + ipc::kLeaseQpns - fresh_--) % ipc::kLeaseQpns;
      const Qpn qpn{ranges_.back() * ipc::kLeaseQpns + n};
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
  std::uint32_t first_ = 0;
  std::uint32_t fresh_ = 0;  // of the last range, how many
  std::deque<Qpn> ready_;    // given back, and no peer has heard of them
  std::deque<Resting> resting_;
};

}  // namespace verbena::process
