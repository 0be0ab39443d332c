#include "faults/flaps.h"

namespace verbena::faults {

Flaps::Flaps(const Periods& periods, Time now)
    : periods_(periods), random_(periods.seed.value_or(0)), next_change_(now + next_period()) {}

Duration Flaps::next_period() {
  const Duration period = is_up_ ? periods_.up : periods_.down;
  if (!periods_.seed) return period;
  return period / 2 + Duration(random_.below(static_cast<std::uint64_t>(period.count()) + 1));
}

bool Flaps::advance(Time now) {
  const bool was_up = is_up_;
  while (next_change_ <= now) {
    is_up_ = !is_up_;
    next_change_ += next_period();
  }
  return is_up_ != was_up;
}

}  // namespace verbena::faults
