#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/strong.h"
#include "base/time.h"
#include "ipc/messages.h"

namespace verbena::process {

// The QP numbers that a program has leased, and which of them a new QP may have.  One that had a
// peer rests: the peer still knows it while its end of the connection is in timewait
// (vol1 12.9.8.4), and would refuse the next one as stale; and packets to it may be under way.
//
// Invariants: a number is in here at most as often as it was given back; fresh ones are of the last
// range.
class QpNumbers {
 public:
  // A peer concludes from our REQs, whose ACK timeout is 2.1 s, that packets live half of that: its
  // timewait is the 2.1 s and its own ACK delay, and begins up to a few repeats of DREQ later.
  static constexpr Duration kRest = std::chrono::seconds(4);

  // A range, all of whose numbers are new; they begin with the one at `first`.
  void add_range(std::uint16_t range, std::uint32_t first) {
    ranges_.push_back(range);
    first_ = first;
    fresh_ = ipc::kLeaseQpns;
  }
  void clear() {
    ranges_.clear();
    used_.clear();
    fresh_ = 0;
  }
  std::span<const std::uint16_t> ranges() const { return ranges_; }
  bool has_leased(Qpn qpn) const {
    return std::ranges::find(ranges_, qpn.value / ipc::kLeaseQpns) != ranges_.end();
  }

  // One that may be used now: a new one, or the one that was used first.  `in_use(Qpn)`: a QP has
  // it.
  std::optional<Qpn> take(Time now, auto&& in_use) {
    while (fresh_ > 0) {
      const std::uint32_t n = (first_ + ipc::kLeaseQpns - fresh_--) % ipc::kLeaseQpns;
      const Qpn qpn{ranges_.back() * ipc::kLeaseQpns + n};
      if (!in_use(qpn)) return qpn;
    }
    if (used_.empty() || used_.front().usable > now) return std::nullopt;
    return take_resting(in_use);
  }
  // The same, without its rest: better than none.
  std::optional<Qpn> take_resting(auto&& in_use) {
    while (!used_.empty()) {
      const Qpn qpn = used_.front().qpn;
      used_.pop_front();
      if (!in_use(qpn)) return qpn;
    }
    return std::nullopt;
  }
  // Of a QP that is gone.  Not kept if the range is another agent's.
  void give_back(Qpn qpn, bool had_peer, Time now) {
    if (has_leased(qpn)) used_.push_back({qpn, had_peer ? now + kRest : now});
  }

 private:
  struct Used {
    Qpn qpn{};
    Time usable{};
  };

  std::vector<std::uint16_t> ranges_;
  std::uint32_t first_ = 0;
  std::uint32_t fresh_ = 0;  // of the last range, how many
  std::deque<Used> used_;    // as they were given back
};

}  // namespace verbena::process
