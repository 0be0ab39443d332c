#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>

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
  // kNoResources: `leases_max` ranges are leased.  REQUIRES: some ranges are neither in `avoid` nor
  // taken.
  Result<std::uint16_t> lease(Random& random, std::span<const std::uint16_t> avoid, auto is_taken) {
    if (leased_.size() >= leases_max_) {
      return fail(Errc::kNoResources, "too many QPN ranges are leased (kLeasesMax)");
    }
    std::uint16_t range = 0;
    do {
      range = static_cast<std::uint16_t>(1 + random.below(kRangesEnd - 1));
    } while (leased_.contains(range) || is_taken(range) ||
             std::ranges::find(avoid, range) != avoid.end());
    leased_.insert(range);
    return range;
  }
  // Returns false if the range is not leased here.
  bool release(std::uint16_t range) { return leased_.erase(range) != 0; }

  const std::set<std::uint16_t>& leased_ranges() const { return leased_; }

 private:
  std::size_t leases_max_;
  std::set<std::uint16_t> leased_{};
};

}  // namespace verbena::agent
