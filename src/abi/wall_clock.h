#pragma once

#include <cstdint>
#include <cstdlib>

namespace verbena::abi {

// Converts times of the monotonic clock to the wall clock.  The same distance is added as long as
// the wall clock is not set, so that later times never come out as earlier ones: reading two clocks
// takes a moment, and the distance measured anew would differ by that moment each time.
class WallClock {
 public:
  // The wall clock was read as `wall` at some time between `before` and `after` of the monotonic
  // one. Takes the distance over if it is the first, or if no error of measuring explains the
  // difference.
  void measure(std::uint64_t before, std::uint64_t wall, std::uint64_t after) {
    const auto error = static_cast<std::int64_t>((after - before) / 2 + 1);
    const auto distance = static_cast<std::int64_t>(wall - before) - error;
    if (known() && std::abs(distance - distance_) <= error + error_) return;
    distance_ = distance;
    error_ = error;
  }
  bool known() const { return error_ != 0; }

  std::uint64_t at(std::uint64_t monotonic) const {
    return monotonic + static_cast<std::uint64_t>(distance_);
  }

 private:
  std::int64_t distance_ = 0;
  std::int64_t error_ = 0;  // how far from the truth it may be
};

}  // namespace verbena::abi
