#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "base/time.h"

namespace verbena::cm {

// What a listener wants to hear of: the service ids that are as `id` where `mask` is set and, of
// requests for them, those whose private data is as `data` where `data_mask` is set, from the first
// byte on.
struct Service {
  static constexpr ServiceId kWholeId{~std::uint64_t{0}};
  static constexpr std::size_t kDataBytesMax = 92;  // of a REQ; a SIDR_REQ has more

  ServiceId id{};
  ServiceId mask{kWholeId};
  std::vector<std::byte> data{};
  std::vector<std::byte> data_mask{};  // as long as `data`

  friend bool operator==(const Service&, const Service&) = default;
};

// Who listens.  No request is for two: who would take another's requests is refused.
class Listeners {
 public:
  // Each mask is looked at for each request, and so are those whose service id is the same.
  static constexpr std::size_t kMasksMax = 64;
  static constexpr std::size_t kOfServiceMax = 256;
  static constexpr std::size_t kExpectedMax = 1024;

  // kAddressInUse: a request could be for this one and for one that is here.  kNoResources: a
  // limit.
  Result<void> add(const Service& service, std::uint64_t cookie);
  // The same value as add()'s.  kInvalidArgument: nobody listens there.
  Result<void> remove(const Service& service);
  // The cookie of target a request is for.
  std::optional<std::uint64_t> find(ServiceId id, std::span<const std::byte> private_data) const;
  // Somebody is about to listen for the service, and will do so before `until` or never.  Of more
  // than kExpectedMax at a time the rest is forgotten.
  void expect(ServiceId id, Time now, Time until);
  void expect_no_more(ServiceId id) { expected_.erase(id.value); }
  bool expects(ServiceId id, Time now) const;
  // Would add() say kAddressInUse?
  bool is_taken(const Service& service) const;
  std::size_t size() const { return size_; }

 private:
  struct Listener {
    std::vector<std::byte> data{};
    std::vector<std::byte> data_mask{};
    std::uint64_t cookie{};
  };
  // By mask, of which there are few, and by what the mask leaves of the id.
  using Group = std::multimap<std::uint64_t, Listener>;

  std::map<std::uint64_t, Group> groups_;
  std::size_t size_ = 0;
  std::map<std::uint64_t, Time> expected_;
};

}  // namespace verbena::cm
