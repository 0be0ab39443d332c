#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/random.h"
#include "base/time.h"

namespace verbena::faults {

// Holds the periods of a flapping link, which is down and up in turn.
struct Periods {
  Duration down{};
  Duration up{};
  // With a seed, each period is random: between 0.5 and 1.5 times as long as given.
  std::optional<std::uint64_t> seed{};
  friend bool operator==(const Periods&, const Periods&) = default;
};

// Decides when a flapping link goes down and comes up.  The link is down in the first period.  The
// owner calls advance() at each next_deadline().
class Flaps {
 public:
  static constexpr Duration kPeriodMin = std::chrono::milliseconds(1);
  static constexpr Duration kPeriodMax = std::chrono::hours(1);

  // REQUIRES: both periods are between the two limits.
  Flaps(const Periods& periods, Time now);

  const Periods& periods() const { return periods_; }
  bool is_up() const { return up_; }
  Time next_deadline() const { return next_; }
  // Ends the periods that are over.  Returns true if is_up() has changed.
  bool advance(Time now);

 private:
  Duration next_period();

  Periods periods_;
  Random random_;
  bool up_ = false;
  Time next_;
};

}  // namespace verbena::faults
