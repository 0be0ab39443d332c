#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace verbena::cm {

// Counts durations by powers of four.
class TimeHistogram {
 public:
  static constexpr std::size_t kBuckets = 12;
  // Returns the longest time that the bucket counts; the last bucket has no limit.
  static constexpr Duration limit(std::size_t bucket) {
    return std::chrono::microseconds(std::int64_t{64} << (2 * bucket));
  }

  void add(Duration took) {
    std::size_t bucket = 0;
    while (bucket + 1 < kBuckets && took > limit(bucket)) ++bucket;
    ++counts_[bucket];
  }
  std::uint64_t of(std::size_t bucket) const { return counts_[bucket]; }

 private:
  std::array<std::uint64_t, kBuckets> counts_{};
};

}  // namespace verbena::cm
