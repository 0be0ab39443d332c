#include "cm/listeners.h"

#include <algorithm>
#include <utility>

namespace verbena::cm {
namespace {

// Returns true if there is private data that both listeners match.
bool overlap(const auto& listener, const Service& other) {
  for (std::size_t i = 0; i < std::min(listener.data.size(), other.data.size()); ++i) {
    const auto common_bits = listener.data_mask[i] & other.data_mask[i];
    if (((listener.data[i] ^ other.data[i]) & common_bits) != std::byte{}) return false;
  }
  return true;
}

bool matches(const auto& listener, std::span<const std::byte> private_data) {
  for (std::size_t i = 0; i < listener.data.size(); ++i) {
    const std::byte byte = i < private_data.size() ? private_data[i] : std::byte{};
    if (((byte ^ listener.data[i]) & listener.data_mask[i]) != std::byte{}) return false;
  }
  return true;
}

}  // namespace

bool Listeners::is_taken(const Service& service) const {
  for (const auto& [mask, group] : groups_) {
    const std::uint64_t common_bits = mask & service.mask.value;
    // If the service's mask includes all bits of this mask, only one masked id of the group can
    // match.  Otherwise each id of the group may match.
    const auto [begin, end] = common_bits == mask ? group.equal_range(service.id.value & mask)
                                                  : std::pair(group.begin(), group.end());
    const bool found = std::any_of(begin, end, [&](const auto& entry) {
      return ((entry.first ^ service.id.value) & common_bits) == 0 &&
             overlap(entry.second, service);
    });
    if (found) return true;
  }
  return false;
}

Result<void> Listeners::add(const Service& service, std::uint64_t cookie) {
  if (service.data.size() != service.data_mask.size() ||
      service.data.size() > Service::kDataBytesMax) {
    return fail(Errc::kInvalidArgument,
                "private data and its mask must have the same length, at most 92");
  }
  if (is_taken(service)) return fail(Errc::kAddressInUse, "the service id is in use");
  const std::uint64_t id = service.id.value & service.mask.value;
  if (groups_.size() >= kMasksMax && !groups_.contains(service.mask.value)) {
    return fail(Errc::kNoResources, "too many different masks of service ids (kMasksMax)");
  }
  if (const auto group = groups_.find(service.mask.value);
      group != groups_.end() && group->second.count(id) >= kOfServiceMax) {
    return fail(Errc::kNoResources, "too many listeners for one service id (kOfServiceMax)");
  }
  groups_[service.mask.value].emplace(id, Listener{service.data, service.data_mask, cookie});
  ++size_;
  return {};
}

Result<void> Listeners::remove(const Service& service) {
  const auto group = groups_.find(service.mask.value);
  if (group == groups_.end()) return fail(Errc::kInvalidArgument, "no such listener");
  const auto [begin, end] = group->second.equal_range(service.id.value & service.mask.value);
  const auto found = std::find_if(begin, end, [&](const auto& entry) {
    return entry.second.data == service.data && entry.second.data_mask == service.data_mask;
  });
  if (found == end) return fail(Errc::kInvalidArgument, "no such listener");
  group->second.erase(found);
  if (group->second.empty()) groups_.erase(group);
  --size_;
  return {};
}

void Listeners::expect(ServiceId id, Time now, Time until) {
  if (expected_.size() >= kExpectedMax) {
    std::erase_if(expected_, [now](const auto& entry) { return entry.second <= now; });
  }
  if (expected_.size() < kExpectedMax) expected_[id.value] = until;
}

bool Listeners::expects(ServiceId id, Time now) const {
  const auto found = expected_.find(id.value);
  return found != expected_.end() && now < found->second;
}

std::optional<std::uint64_t> Listeners::find(ServiceId id,
                                             std::span<const std::byte> private_data) const {
  for (const auto& [mask, group] : groups_) {
    const auto [begin, end] = group.equal_range(id.value & mask);
    const auto found = std::find_if(
        begin, end, [&](const auto& entry) { return matches(entry.second, private_data); });
    if (found != end) return found->second.cookie;
  }
  return std::nullopt;
}

}  // namespace verbena::cm
