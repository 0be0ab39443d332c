#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace verbena::cm {

// Counts durations in buckets.  The limit of each bucket is four times the limit of the bucket
// before.
class TimeHistogram {
 public:
  static constexpr std::size_t kBuckets = 12;
  // Returns the longest duration that a bucket counts.  The last bucket also counts all longer
  // durations.
  static constexpr Duration limit(std::size_t bucket) {
    return std::chrono::microseconds(std::int64_t{64} << (2 * bucket));
  }

  void add(Duration duration) {
    std::size_t bucket = 0;
    while (bucket + 1 < kBuckets && duration > limit(bucket)) ++bucket;
    ++counts_[bucket];
  }
  // Returns the number of durations in a bucket.
  std::uint64_t of(std::size_t bucket) const { return counts_[bucket]; }

 private:
  std::array<std::uint64_t, kBuckets> counts_{};
};

}  // namespace verbena::cm
