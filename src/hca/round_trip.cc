#include "hca/round_trip.h"

#include <algorithm>

namespace verbena::hca {
namespace {

// This timeout applies until the first round trip is measured.
constexpr Duration kTimeoutInitial = std::chrono::milliseconds(50);
// floor_ stays between these bounds.  It grows to the maximum on a line without losses, and shrinks
// to the minimum on a line with many losses.
constexpr Duration kFloorMax = std::chrono::milliseconds(5);
constexpr Duration kFloorMin = std::chrono::microseconds(200);
// Limits the interval between probes, so that the requester soon notices when the line works again.
constexpr Duration kTimeoutMax = std::chrono::seconds(1);
constexpr unsigned kDoublingsMax = 13;

}  // namespace

void RoundTrip::sent(std::uint64_t number, std::uint64_t una, Time now) {
  if (number_ != 0) return;
  number_ = number;
  una_at_sent_ = una;
  sent_at_ = now;
}

std::optional<RoundTrip::Sample> RoundTrip::answered(std::uint64_t una, Time now) {
  probes_ = 0;
  if (number_ == 0 || number_ > una) return {};
  number_ = 0;
  const Duration took = now - sent_at_;
  least_ = least_ == Duration{} ? took : std::min(least_, took);
  add(took);
  return Sample{.took = took, .least = least_, .packets = una - una_at_sent_};
}

void RoundTrip::add(Duration sample) {
  if (smoothed_ == Duration{}) {
    smoothed_ = std::max(sample, Duration(1));
    deviation_ = sample / 2;
    return;
  }
  const Duration difference = sample - smoothed_;
  deviation_ += ((difference < Duration{} ? -difference : difference) - deviation_) / 4;
  smoothed_ = std::max(smoothed_ + difference / 8, Duration(1));
}

void RoundTrip::probe(Time now) {
  ++probes_;
  probed_ = now;
  forget();
}

void RoundTrip::was_too_early(Duration took) {
  floor_ = std::min(2 * floor_, kFloorMax);
  add(took);
}

void RoundTrip::was_lost() { floor_ = std::max(floor_ / 2, kFloorMin); }

Duration RoundTrip::timeout() const {
  const Duration once =
      smoothed_ == Duration{} ? kTimeoutInitial : std::max(floor_, smoothed_ + 4 * deviation_);
  return std::min(once * (1 << std::min(probes_, kDoublingsMax)), std::max(once, kTimeoutMax));
}

Time RoundTrip::due(Time moved) const { return std::max(moved, probed_) + timeout(); }

}  // namespace verbena::hca
