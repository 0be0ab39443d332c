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

// Chooses numbers for new QPs from the ranges that the program has leased.  A number that a peer
// may know is quarantined after use: while the peer's end of the connection is in timewait (vol1
// 12.9.8.4), the peer may refuse a new connection of the same number as stale, and old packets may
// be under way.
//
// Invariants: fresh_ holds only numbers of the last range.  ready_ and quarantined_ hold only
// numbers that were given back.
class QpNumbers {
 public:
  // Our REQs have an ACK timeout of 2.1 s, so the peer assumes a packet lifetime of half of that.
  // The peer's timewait lasts 2.1 s plus its own ACK delay.  It begins late if the DREQ is lost and
  // repeated.  (If the program has chosen a longer ACK timeout, the peer may still refuse the
  // number after this time.)
  static constexpr Duration kQuarantine = std::chrono::seconds(4);

  // Adds a range of new numbers.  They are given out in random order, so that one QP's number does
  // not reveal others.
  void add_range(std::uint16_t range, Random& random) {
    ranges_.push_back(range);
    known_.emplace_back();
    fresh_.resize(ipc::kLeaseQpns);
    std::iota(fresh_.begin(), fresh_.end(), range * ipc::kLeaseQpns);
    for (std::size_t left = fresh_.size(); left > 1; --left) {
      std::swap(fresh_[left - 1], fresh_[random.below(left)]);
    }
  }
  void clear() {
    ranges_.clear();
    known_.clear();
    ready_.clear();
    quarantined_.clear();
    fresh_.clear();
  }
  std::span<const std::uint16_t> ranges() const { return ranges_; }
  bool has_leased(Qpn qpn) const { return index_of_range(qpn) < ranges_.size(); }

  // Returns a number that may be used now: a new one, or the one that was given back first.
  // `in_use(Qpn)` tells whether a QP has the number.
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
    if (quarantined_.empty() || quarantined_.front().until > now) return std::nullopt;
    return take_quarantined(in_use);
  }
  // Returns the number that was quarantined first, even if its time is not over.
  std::optional<Qpn> take_quarantined(auto&& in_use) {
    while (!quarantined_.empty()) {
      const Qpn qpn = quarantined_.front().qpn;
      quarantined_.pop_front();
      if (!in_use(qpn)) return qpn;
    }
    return std::nullopt;
  }
  // Notes that a peer may know the number from now on.
  void mark_known(Qpn qpn) {
    const std::size_t index = index_of_range(qpn);
    if (index < ranges_.size()) known_[index].set(qpn.value % ipc::kLeaseQpns);
  }
  // Takes back the number of a destroyed QP.  Ignores numbers of a dead agent's ranges.
  void give_back(Qpn qpn, Time now) {
    const std::size_t index = index_of_range(qpn);
    if (index == ranges_.size()) return;
    auto known = known_[index][qpn.value % ipc::kLeaseQpns];
    if (known) {
      quarantined_.push_back({qpn, now + kQuarantine});
    } else {
      ready_.push_back(qpn);
    }
    known = false;
  }

 private:
  struct Quarantined {
    Qpn qpn{};
    Time until{};
  };

  // Returns the index of the number's range in ranges_, or the size of ranges_ if it is in none.
  std::size_t index_of_range(Qpn qpn) const {
    const auto at = std::ranges::find(ranges_, qpn.value / ipc::kLeaseQpns);
    return static_cast<std::size_t>(at - ranges_.begin());
  }

  std::vector<std::uint16_t> ranges_;
  // known_ holds, for each range, the numbers that a peer may know.
  std::vector<std::bitset<ipc::kLeaseQpns>> known_;
  std::vector<std::uint32_t> fresh_;  // numbers of the last range, taken from the end
  std::deque<Qpn> ready_;             // numbers that were given back and that no peer knows
  std::deque<Quarantined> quarantined_;
};

}  // namespace verbena::process
