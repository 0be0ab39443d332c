#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/random.h"
#include "base/time.h"

namespace verbena::faults {

// Holds the periods of a flapping link, which alternates between down and up.
struct Periods {
  Duration down{};
  Duration up{};
  // With a seed, each period is random, with 0.5 to 1.5 times the given length.
  std::optional<std::uint64_t> seed{};
  friend bool operator==(const Periods&, const Periods&) = default;
};

// Determines the times at which a flapping link goes down and comes up.  The link is down in the
// first period.  The owner calls advance() at each next_deadline().
class Flaps {
 public:
  static constexpr Duration kPeriodMin = std::chrono::milliseconds(1);
  static constexpr Duration kPeriodMax = std::chrono::hours(1);

  // REQUIRES: both periods are between the two limits.
  Flaps(const Periods& periods, Time now);

  const Periods& periods() const { return periods_; }
  bool is_up() const { return is_up_; }
  Time next_deadline() const { return next_change_; }
  // Advances over all periods that have ended by now.  Returns true if is_up() has changed.
  bool advance(Time now);

 private:
  Duration next_period();

  Periods periods_;
  Random random_;
  bool is_up_ = false;
  Time next_change_;
};

}  // namespace verbena::faults
