#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/strong.h"
#include "base/time.h"
#include "ipoib/types.h"

namespace verbena::ipoib {

// Represents a call of resolve() that waits for an address.
struct Waiter {
  std::uint64_t cookie{};
  Time called_at{};
};

// Holds an entry about one IP address.  An entry without a link address is incomplete.  Only
// incomplete entries have waiters.
struct Entry {
  const Gid ip;
  std::deque<Waiter> waiters{};  // the oldest waiter is first
  std::uint32_t tries = 0;       // requests since the last answer; 0 if no request is pending
  Time next_request = kNever;    // the time at which a pending request is repeated
  Time confirmed_at{};           // the time at which a message last set or confirmed the address
  Time changed_at{};             // the time at which the link address last changed
  Time reachable_until{};        // the entry becomes stale at this time

  const std::optional<LinkAddress>& address() const { return address_; }
  bool is_incomplete() const { return !address_; }
  State state(Time now) const {
    if (is_incomplete()) return State::kIncomplete;
    if (tries != 0) return State::kProbe;
    return now < reachable_until ? State::kReachable : State::kStale;
  }

  explicit Entry(const Gid& address) : ip(address) {}

 private:
  friend class Table;
  std::optional<LinkAddress> address_{};
  // The position of the entry in Table::lru_, if it has a link address.
  std::list<Entry*>::iterator lru_position_{};
  Time deadline_ = kNever;  // the entry's deadline in Table::deadlines_
};

// Stores the entries, and finds them by IP address, by GID, by deadline and by use.
//
// The table has at most `entries_max` entries.  If the table is full, a new entry replaces the
// least recently used entry that has a link address.  A pointer to an entry remains valid until
// erase(), or until a new entry replaces the entry.
class Table {
 public:
  explicit Table(std::uint32_t entries_max) : entries_max_(entries_max) {}

  Entry* find(const Gid& ip);
  // Adds an incomplete entry.  Returns null if the table is full of incomplete entries.  Sets
  // `evicted` to true if another entry was removed.  REQUIRES: the address has no entry.
  Entry* insert(const Gid& ip, bool& evicted);
  void erase(Entry& entry);

  void set_address(Entry& entry, const std::optional<LinkAddress>& address);
  void set_deadline(Entry& entry, Time deadline);
  // Makes the entry the most recently used, if it has a link address.
  void touch(Entry& entry);

  Time deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }
  // Returns an entry whose deadline has passed, or null.
  Entry* first_due(Time now);
  // Returns the IP addresses of the entries with this GID.
  std::vector<Gid> addresses_with_gid(const Gid& gid) const;

  std::size_t size() const { return entries_.size(); }
  const std::map<Gid, Entry>& entries() const { return entries_; }
  std::map<Gid, Entry>& entries() { return entries_; }

 private:
  const std::uint32_t entries_max_;
  std::map<Gid, Entry> entries_;
  std::set<std::pair<Time, Gid>> deadlines_;
  std::set<std::pair<Gid, Gid>> by_gid_;  // GID and IP address of each entry with a link address
  std::list<Entry*> lru_;                 // the entries of by_gid_, the least recently used first
};

}  // namespace verbena::ipoib
