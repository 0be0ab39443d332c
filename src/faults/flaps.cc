#include "faults/flaps.h"

namespace verbena::faults {

Flaps::Flaps(const Periods& periods, Time now)
    : periods_(periods), random_(periods.seed.value_or(0)), next_(now + next_period()) {}

Duration Flaps::next_period() {
  const Duration period = up_ ? periods_.up : periods_.down;
  if (!periods_.seed) return period;
  return period / 2 + Duration(random_.below(static_cast<std::uint64_t>(period.count()) + 1));
}

bool Flaps::advance(Time now) {
  const bool before = up_;
  while (next_ <= now) {
    up_ = !up_;
    next_ += next_period();
  }
  return up_ != before;
}

}  // namespace verbena::faults
