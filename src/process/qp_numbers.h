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
// still arrive.
//
// Invariants: unused_ holds only numbers of the last range.  reusable_ and quarantined_ hold only
// numbers that were released.
class QpNumbers {
 public:
  struct Quarantined {
    Qpn qpn{};
    Time until{};
  };

  // Our REQs have an ACK timeout of 2.1 s, so the peer assumes a packet lifetime of half of that.
  // The peer's timewait lasts 2.1 s plus its own ACK delay.  It begins late if the DREQ is lost and
  // repeated.  (If the program has chosen a longer ACK timeout, the peer may still refuse the
  // number after this time.)
  static constexpr Duration kQuarantine = std::chrono::seconds(4);

  // Adds a range of new numbers.  Their order is random, so that one QP's number does not reveal
  // the numbers of other QPs.
  void add_range(std::uint16_t range, Random& random) {
    ranges_.push_back(range);
    known_to_peer_.emplace_back();
    unused_.resize(ipc::kLeaseQpns);
    std::iota(unused_.begin(), unused_.end(), range * ipc::kLeaseQpns);
    for (std::size_t count = unused_.size(); count > 1; --count) {
      std::swap(unused_[count - 1], unused_[random.below(count)]);
    }
  }
  void clear() {
    ranges_.clear();
    known_to_peer_.clear();
    reusable_.clear();
    quarantined_.clear();
    unused_.clear();
  }
  std::span<const std::uint16_t> ranges() const { return ranges_; }
  bool has_leased(Qpn qpn) const { return index_of_range(qpn) < ranges_.size(); }

  // Returns a number that may be used now.  Prefers a new number.  Otherwise returns the released
  // number that no peer knows and that was released first, or else the number that was quarantined
  // first, if its quarantine has ended.  `in_use(Qpn)` returns true if a QP has the number.
  std::optional<Qpn> choose(Time now, auto&& in_use) {
    while (!unused_.empty()) {
      const Qpn qpn{unused_.back()};
      unused_.pop_back();
      if (!in_use(qpn)) return qpn;
    }
    while (!reusable_.empty()) {
      const Qpn qpn = reusable_.front();
      reusable_.pop_front();
      if (!in_use(qpn)) return qpn;
    }
    if (quarantined_.empty() || quarantined_.front().until > now) return std::nullopt;
    const auto number = choose_quarantined(in_use);
    return number ? std::optional(number->qpn) : std::nullopt;
  }
  // Returns the number that was quarantined first, even if its quarantine has not ended.
  std::optional<Quarantined> choose_quarantined(auto&& in_use) {
    while (!quarantined_.empty()) {
      const Quarantined first = quarantined_.front();
      quarantined_.pop_front();
      if (!in_use(first.qpn)) return first;
    }
    return std::nullopt;
  }
  // Undoes choose_quarantined(), because no QP got the number: the quarantine continues.
  void return_to_quarantine(const Quarantined& number) { quarantined_.push_front(number); }
  // Records that a peer may know the number from now on.
  void mark_known_to_peer(Qpn qpn) {
    const std::size_t index = index_of_range(qpn);
    if (index < ranges_.size()) known_to_peer_[index].set(qpn.value % ipc::kLeaseQpns);
  }
  // Releases the number of a destroyed QP.  Ignores numbers of a dead agent's ranges.
  void release(Qpn qpn, Time now) {
    const std::size_t index = index_of_range(qpn);
    if (index == ranges_.size()) return;
    auto is_known = known_to_peer_[index][qpn.value % ipc::kLeaseQpns];
    if (is_known) {
      quarantined_.push_back({qpn, now + kQuarantine});
    } else {
      reusable_.push_back(qpn);
    }
    is_known = false;
  }

 private:
  // Returns the index of the number's range in ranges_, or the size of ranges_ if it is in none.
  std::size_t index_of_range(Qpn qpn) const {
    const auto at = std::ranges::find(ranges_, qpn.value / ipc::kLeaseQpns);
    return static_cast<std::size_t>(at - ranges_.begin());
  }

  std::vector<std::uint16_t> ranges_;
  // known_to_peer_ holds, for each range, the numbers that a peer may know.
  std::vector<std::bitset<ipc::kLeaseQpns>> known_to_peer_;
  std::vector<std::uint32_t> unused_;  // numbers of the last range, taken from the end
  std::deque<Qpn> reusable_;           // released numbers that no peer knows
  std::deque<Quarantined> quarantined_;
};

}  // namespace verbena::process
