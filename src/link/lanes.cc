#include "link/lanes.h"

#include <cstring>

namespace verbena::link {

std::optional<Lanes::Place> Lanes::place_of(Id id) const {
  for (std::size_t place = 0; place < end_; ++place) {
    if (places_[place] && places_[place]->id == id) return static_cast<Place>(place);
  }
  return {};
}

const Lane* Lanes::find_with_lingering(Id id) const {
  if (const auto place = place_of(id)) return &places_[*place]->lane;
  const auto found = lingering_.find(id);
  return found == lingering_.end() ? nullptr : &found->second;
}

Result<void> Lanes::add(Id id, const Lane& lane, std::span<const std::uint16_t> ranges) {
  if (place_of(id)) return fail(Errc::kInvalidArgument, "lanes: this lane exists already");
  const auto free_place = std::ranges::find_if(places_, [](const auto& entry) { return !entry; });
  if (free_place == places_.end())
    return fail(Errc::kNoResources, "lanes: the program has the maximum number of lanes");
  *free_place = std::make_unique<Entry>(Entry{.id = id, .lane = lane});
  (*free_place)->lane.set_observer(observer_);
  ++count_;
  end_ = std::max(end_, static_cast<std::size_t>(free_place - places_.begin()) + 1);
  for (const std::uint16_t range : ranges) add_range(id, range);
  return {};
}

void Lanes::add_range(Id id, std::uint16_t range) {
  const auto place = place_of(id);
  if (place && range < kRanges) place_of_range_[range] = *place;
}

void Lanes::set_uplink(Id id) {
  if (const auto place = place_of(id)) uplink_ = *place;
}

void Lanes::remove_range(Id id, std::uint16_t range) {
  const auto place = place_of(id);
  if (place && range < kRanges && place_of_range_[range] == *place)
    place_of_range_[range] = kUnknown;
}

void Lanes::remove(Id id) {
  const auto place = place_of(id);
  if (!place) return;
  std::ranges::replace(place_of_range_, *place, kUnknown);
  if (uplink_ == *place) uplink_ = kNone;
  places_[*place] = nullptr;
  --count_;
  while (end_ > 0 && !places_[end_ - 1]) --end_;
}

void Lanes::clear() {
  place_of_range_ = all_unknown();
  for (auto& entry : places_) entry = nullptr;
  count_ = end_ = 0;
  uplink_ = kNone;
  wanted_ranges_.clear();
}

void Lanes::set_observer(LaneObserver* observer) {
  observer_ = observer;
  for_each([observer](Id, Lane& lane) { lane.set_observer(observer); });
}

void Lanes::refuse(std::uint16_t range) {
  if (range < kRanges && place_of_range_[range] == kUnknown) place_of_range_[range] = kNone;
}

// Checks first whether any range is kNone, because each new connection calls this function and
// usually there is no such range.  memchr() searches much faster than a loop.
void Lanes::forget_refusals() {
  if (std::memchr(place_of_range_.data(), kNone, place_of_range_.size()) == nullptr) return;
  std::ranges::replace(place_of_range_, kNone, kUnknown);
}

std::vector<Lanes::Access> Lanes::accesses() const {
  std::vector<Access> found;
  const auto add_access = [&found](Id id, const Lane& lane) {
    if (const std::uint64_t number = lane.peer_access_number()) found.push_back({id, number});
  };
  for (const auto& entry : used_places()) {
    if (entry) add_access(entry->id, entry->lane);
  }
  for (const auto& [id, lane] : lingering_) add_access(id, lane);
  return found;
}

bool Lanes::remove_ended_accesses(std::vector<Access>& accesses) const {
  std::erase_if(accesses, [this](const Access& access) {
    const Lane* const lane = find_with_lingering(access.lane);
    return lane == nullptr || lane->peer_access_number() != access.number;
  });
  return accesses.empty();
}

std::optional<Lanes::Id> Lanes::poll_wake() {
  if (!any_wake_is_due_) return {};
  for (const auto& entry : used_places()) {
    if (entry && std::exchange(entry->wake_is_due, false)) return entry->id;
  }
  any_wake_is_due_ = false;
  return {};
}

void Lanes::note_wanted(std::uint16_t range) {
  wanted_ranges_.push_back(range);
  place_of_range_[range] = kNone;
}

std::optional<std::uint16_t> Lanes::poll_range_without_lane() {
  if (wanted_ranges_.empty()) return {};
  const std::uint16_t range = wanted_ranges_.front();
  wanted_ranges_.pop_front();
  return range;
}

}  // namespace verbena::link
