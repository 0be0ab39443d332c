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

// Selects the requests for a listener.  The service id must equal `id` where `mask` is set.
// The private data must equal `data` where `data_mask` is set, from the first byte on.
struct Service {
  static constexpr ServiceId kWholeId{~std::uint64_t{0}};
  static constexpr std::size_t kDataBytesMax = 92;  // in a REQ; a SIDR_REQ has more

  ServiceId id{};
  ServiceId mask{kWholeId};
  std::vector<std::byte> data{};
  std::vector<std::byte> data_mask{};  // as long as `data`

  friend bool operator==(const Service&, const Service&) = default;
};

// Holds the listeners of a host.  A request matches at most one: add() refuses a listener that
// overlaps with another one.
class Listeners {
 public:
  // The number of listeners is limited, because find() compares a request with each mask, and with
  // each listener for its service id.
  static constexpr std::size_t kMasksMax = 64;
  static constexpr std::size_t kOfServiceMax = 256;
  static constexpr std::size_t kExpectedMax = 1024;

  // Adds a listener.  kAddressInUse: a request could match both this listener and another one.
  // kNoResources: a limit is reached.
  Result<void> add(const Service& service, std::uint64_t cookie);
  // Removes the listener with the same masked id, mask and data.  kInvalidArgument: there is no
  // such listener.
  Result<void> remove(const Service& service);
  // Returns the cookie of the listener that a request matches, or nullopt if there is none.
  std::optional<std::uint64_t> find(ServiceId id, std::span<const std::byte> private_data) const;
  // Announces that a program will probably listen for the service before `until`.  At most
  // kExpectedMax services are remembered at a time.
  void expect(ServiceId id, Time now, Time until);
  void stop_expecting(ServiceId id) { expected_.erase(id.value); }
  bool expects(ServiceId id, Time now) const;
  // Returns true if add() would fail with kAddressInUse.
  bool is_taken(const Service& service) const;
  std::size_t size() const { return size_; }

 private:
  struct Listener {
    std::vector<std::byte> data{};
    std::vector<std::byte> data_mask{};
    std::uint64_t cookie{};
  };
  // Holds the listeners that have the same mask, by the masked id.
  using Group = std::multimap<std::uint64_t, Listener>;

  std::map<std::uint64_t, Group> groups_;  // by mask; there are few masks
  std::size_t size_ = 0;
  std::map<std::uint64_t, Time> expected_;  // by service id: the time when the expectation expires
};

}  // namespace verbena::cm
