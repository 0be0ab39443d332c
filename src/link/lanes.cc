#include "link/lanes.h"

#include <cstring>

namespace verbena::link {

std::optional<Lanes::Place> Lanes::place_of(Id id) const {
  for (std::size_t place = 0; place < kLanesMax; ++place) {
    if (places_[place] && places_[place]->id == id) return static_cast<Place>(place);
  }
  return {};
}

Result<void> Lanes::add(Id id, const Lane& lane, std::span<const std::uint16_t> ranges) {
  if (place_of(id)) return fail(Errc::kInvalidArgument, "lanes: this lane exists already");
  const auto free = std::ranges::find_if(places_, [](const auto& entry) { return !entry; });
  if (free == places_.end())
    return fail(Errc::kNoResources, "lanes: the program has the most that it may have");
  *free = std::make_unique<Entry>(Entry{.id = id, .lane = lane});
  (*free)->lane.set_observer(observer_);
  ++count_;
  for (const std::uint16_t range : ranges) add_range(id, range);
  return {};
}

void Lanes::add_range(Id id, std::uint16_t range) {
  const auto place = place_of(id);
  if (place && range < kRanges) of_range_[range] = *place;
}

void Lanes::remove_range(Id id, std::uint16_t range) {
  const auto place = place_of(id);
  if (place && range < kRanges && of_range_[range] == *place) of_range_[range] = kUnknown;
}

void Lanes::remove(Id id) {
  const auto place = place_of(id);
  if (!place) return;
  std::ranges::replace(of_range_, *place, kUnknown);
  places_[*place] = nullptr;
  --count_;
}

void Lanes::clear() {
  of_range_ = nothing_known();
  for (auto& entry : places_) entry = nullptr;
  count_ = 0;
  wanted_.clear();
}

void Lanes::set_observer(LaneObserver* observer) {
  observer_ = observer;
  for_each([observer](Id, Lane& lane) { lane.set_observer(observer); });
}

void Lanes::refuse(std::uint16_t range) {
  if (range < kRanges && of_range_[range] == kUnknown) of_range_[range] = kNone;
}

// Each new connection calls this, and mostly there is nothing to forget: memchr() finds that out
// much faster than a loop.
void Lanes::forget_refusals() {
  if (std::memchr(of_range_.data(), kNone, of_range_.size()) == nullptr) return;
  std::ranges::replace(of_range_, kNone, kUnknown);
}

std::optional<Lanes::Id> Lanes::poll_wake() {
  if (!any_wake_is_due_) return {};
  for (const auto& entry : places_) {
    if (entry && std::exchange(entry->wake_is_due, false)) return entry->id;
  }
  any_wake_is_due_ = false;
  return {};
}

void Lanes::want(std::uint16_t range) {
  wanted_.push_back(range);
  of_range_[range] = kNone;
}

std::optional<std::uint16_t> Lanes::poll_wanted() {
  if (wanted_.empty()) return {};
  const std::uint16_t range = wanted_.front();
  wanted_.pop_front();
  return range;
}

}  // namespace verbena::link
