#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/time.h"

namespace verbena {

// Follows a counter that another process writes into memory that it shares with this one.  That
// process can write any number, so this class adds only increases that a program can cause: at most
// kPerSecondMax for each second since the beginning, and for one second more.  A larger increase,
// or a decrease, adds nothing and is counted as implausible.  Later increases are added again.
//
// A total over several programs adds up value(), and never the reported numbers themselves.
class ReportedCount {
 public:
  // No machine moves more bytes, and no counter grows faster.
  static constexpr std::uint64_t kPerSecondMax = std::uint64_t{1} << 38;

  // The counter was 0 at `start`, and wraps around after `bits` bits.
  explicit ReportedCount(Time start, int bits = 64)
      : start_(start), mask_(~std::uint64_t{0} >> (64 - bits)) {}

  // Takes the number that the other process shows now.
  void update(std::uint64_t reported, Time now) {
    const std::uint64_t increase = (reported - last_) & mask_;
    last_ = reported & mask_;
    if (increase > most_until(now) - std::min(value_, most_until(now))) {
      ++implausible_;
    } else {
      value_ += increase;
    }
  }

  // Returns the sum of all plausible increases.
  std::uint64_t value() const { return value_; }
  // Returns how many increases were not added.
  std::uint64_t implausible() const { return implausible_; }

 private:
  std::uint64_t most_until(Time now) const {
    constexpr std::int64_t kSecondsMax = 1 << 25;  // the product below fits into 64 bits
    const auto seconds =
        std::chrono::ceil<std::chrono::seconds>(std::max(now - start_, Duration{})).count() + 1;
    return static_cast<std::uint64_t>(std::min(seconds, kSecondsMax)) * kPerSecondMax;
  }

  Time start_;
  std::uint64_t mask_;
  std::uint64_t last_ = 0;
  std::uint64_t value_ = 0;
  std::uint64_t implausible_ = 0;
};

}  // namespace verbena
