#include "hosts/fault_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "os/clock.h"

namespace verbena::hosts {

FaultSchedule::FaultSchedule(asio::io_context& loop, Faults& faults,
                             std::vector<plan::ScheduledFault> scheduled, const agent::Log& log)
    : faults_(faults), log_(log), began_(os::now()), timer_(loop, [this] { on_timer(); }) {
  for (plan::ScheduledFault& fault : scheduled) {
    const auto place =
        std::ranges::upper_bound(scheduled_, fault.after, {}, &plan::ScheduledFault::after);
    scheduled_.insert(place, std::move(fault));
  }
  if (!scheduled_.empty()) timer_.at(began_ + scheduled_.front().after);
}

void FaultSchedule::on_timer() {
  const Time now = os::now();
  for (; next_index_ < scheduled_.size() && began_ + scheduled_[next_index_].after <= now;
       ++next_index_) {
    const auto state = faults_.set(scheduled_[next_index_].fault);
    log_.line(state ? *state
                    : fmt::format("the fault '{}' of the file is refused: {}",
                                  faults::text_of(scheduled_[next_index_].fault), state.error()));
  }
  timer_.at(next_index_ < scheduled_.size() ? began_ + scheduled_[next_index_].after : kNever);
}

}  // namespace verbena::hosts
