#include "hca/round_trip.h"

#include <algorithm>

namespace verbena::hca {
namespace {

// This timeout applies until the first round trip is measured.
constexpr Duration kTimeoutInitial = std::chrono::milliseconds(50);
// floor_ stays between these bounds.  It begins with the maximum, shrinks after a loss, and grows
// after a probe that was too early.
constexpr Duration kFloorMax = std::chrono::milliseconds(5);
constexpr Duration kFloorMin = std::chrono::microseconds(200);
// Limits the interval between probes, so that the requester soon notices when the line works again.
constexpr Duration kTimeoutMax = std::chrono::seconds(1);
constexpr unsigned kDoublingsMax = 13;

}  // namespace

void RoundTrip::on_sent(std::uint64_t end, std::uint64_t una, Time now) {
  if (end_ != 0) return;
  end_ = end;
  una_at_sent_ = una;
  sent_at_ = now;
}

std::optional<RoundTrip::Sample> RoundTrip::on_answered(std::uint64_t una, Time now) {
  probes_ = 0;
  if (end_ == 0 || end_ > una) return {};
  end_ = 0;
  const Duration duration = now - sent_at_;
  shortest_ = shortest_ == Duration{} ? duration : std::min(shortest_, duration);
  add_sample(duration);
  return Sample{.duration = duration, .shortest = shortest_, .packets = una - una_at_sent_};
}

void RoundTrip::add_sample(Duration sample) {
  if (smoothed_round_trip_ == Duration{}) {
    smoothed_round_trip_ = std::max(sample, Duration(1));
    deviation_ = sample / 2;
    return;
  }
  const Duration difference = sample - smoothed_round_trip_;
  deviation_ += ((difference < Duration{} ? -difference : difference) - deviation_) / 4;
  smoothed_round_trip_ = std::max(smoothed_round_trip_ + difference / 8, Duration(1));
}

void RoundTrip::on_probe(Time now) {
  ++probes_;
  last_probe_ = now;
  stop_measurement();
}

void RoundTrip::on_early_probe(Duration duration) {
  floor_ = std::min(2 * floor_, kFloorMax);
  add_sample(duration);
}

void RoundTrip::on_loss() { floor_ = std::max(floor_ / 2, kFloorMin); }

Duration RoundTrip::timeout() const {
  const Duration base_timeout = smoothed_round_trip_ == Duration{}
                                    ? kTimeoutInitial
                                    : std::max(floor_, smoothed_round_trip_ + 4 * deviation_);
  return std::min(base_timeout * (1 << std::min(probes_, kDoublingsMax)),
                  std::max(base_timeout, kTimeoutMax));
}

Time RoundTrip::next_probe(Time last_progress) const {
  return std::max(last_progress, last_probe_) + timeout();
}

}  // namespace verbena::hca
