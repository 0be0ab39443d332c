#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace verbena::agent {

// Leases ranges of QP numbers to programs that receive their packets without a UDP socket, so that
// the leases do not depend on port 4791.
class SocketlessRanges {
 public:
  static constexpr std::size_t kLeasesMax = 512;

  explicit SocketlessRanges(std::size_t leases_max = kLeasesMax) : leases_max_(leases_max) {}

  // The ranges 0 and 0xfff are not leased, because they contain special QP numbers.
  static constexpr std::uint16_t kRangesEnd = 0xfff;

  // Leases a random range that is not in `avoid` and for which `is_taken` returns false.
  // kNoResources: `leases_max` ranges are leased, or there is no such range.
  Result<std::uint16_t> lease(Random& random, std::span<const std::uint16_t> avoid, auto is_taken) {
    if (leased_.size() >= leases_max_) {
      return fail(Errc::kNoResources, "too many QPN ranges are leased (kLeasesMax)");
    }
    const std::vector<std::uint16_t> free = free_ranges(avoid, is_taken);
    if (free.empty()) return fail(Errc::kNoResources, "no QPN range is free");
    const std::uint16_t range = free[random.below(free.size())];
    leased_.insert(range);
    return range;
  }
  // Returns false if the range is not leased here.
  bool release(std::uint16_t range) { return leased_.erase(range) != 0; }

  const std::set<std::uint16_t>& leased_ranges() const { return leased_; }

 private:
  std::vector<std::uint16_t> free_ranges(std::span<const std::uint16_t> avoid,
                                         auto is_taken) const {
    std::bitset<kRangesEnd> is_excluded;
    for (const std::uint16_t range : leased_) is_excluded.set(range);
    for (const std::uint16_t range : avoid) {
      if (range < kRangesEnd) is_excluded.set(range);
    }
    std::vector<std::uint16_t> free;
    for (std::uint16_t range = 1; range < kRangesEnd; ++range) {
      if (!is_excluded[range] && !is_taken(range)) free.push_back(range);
    }
    return free;
  }

  std::size_t leases_max_;
  std::set<std::uint16_t> leased_{};
};

}  // namespace verbena::agent
