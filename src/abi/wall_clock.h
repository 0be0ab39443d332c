#pragma once

#include <cstdint>
#include <cstdlib>

namespace verbena::abi {

// Converts times of the monotonic clock to the wall clock.  The offset between them stays the same
// until somebody sets the wall clock, so that converted times never go backwards.  A new offset for
// each time would vary, because the two clocks cannot be read at the same moment.
class WallClock {
 public:
  // Takes a reading `wall` of the wall clock, made between the monotonic times `before` and
  // `after`.  Uses the new offset if it is the first one, or if it differs from the old one by more
  // than the measuring error.
  void measure(std::uint64_t before, std::uint64_t wall, std::uint64_t after) {
    const auto error = static_cast<std::int64_t>((after - before) / 2 + 1);
    const auto offset = static_cast<std::int64_t>(wall - before) - error;
    if (is_known() && std::abs(offset - offset_) <= error + error_) return;
    offset_ = offset;
    error_ = error;
  }
  // Returns true after the first measurement.
  bool is_known() const { return error_ != 0; }

  std::uint64_t at(std::uint64_t monotonic) const {
    return monotonic + static_cast<std::uint64_t>(offset_);
  }

 private:
  std::int64_t offset_ = 0;
  std::int64_t error_ = 0;  // the largest possible error of offset_
};

}  // namespace verbena::abi
