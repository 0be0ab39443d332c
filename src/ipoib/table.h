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

struct Asker {
  std::uint64_t cookie{};
  Time asked{};
};

// Holds an entry about one IP address.  It is incomplete as long as it has no link address.
// Exactly the incomplete entries have askers.
struct Entry {
  const Gid ip;
  std::deque<Asker> askers{};  // the first one first
  std::uint32_t tries = 0;     // requests since the last answer; 0: none is under way
  Time next_request = kNever;  // if one is under way: when it is repeated
  Time told{};                 // when the neighbour last told its address
  Time changed{};              // when the neighbour last told a different address than before
  Time reachable_until{};      // the entry is stale from then on

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
  std::list<Entry*>::iterator use_{};  // place in Table::by_use_, if there is an address
  Time deadline_ = kNever;             // equals the entry in Table::deadlines_
};

// Stores the entries, and finds them by IP address, by GID, by deadline and by use.
//
// Invariants: there are at most `entries_max` entries.  A new entry replaces the least recently
// used one that has a link address.  Entries stay at their place in memory.
class Table {
 public:
  explicit Table(std::uint32_t entries_max) : entries_max_(entries_max) {}

  Entry* find(const Gid& ip);
  // Makes room and adds an incomplete entry; null: all entries are incomplete.  `evicted` tells
  // whether another one was removed.  REQUIRES: there is no entry for the address.
  Entry* insert(const Gid& ip, bool& evicted);
  void erase(Entry& entry);

  void set_address(Entry& entry, const std::optional<LinkAddress>& address);
  void set_deadline(Entry& entry, Time deadline);
  // Makes the entry the most recently used one.
  void touch(Entry& entry);

  Time deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }
  // Returns an entry whose deadline has come, or null.
  Entry* due(Time now);
  std::vector<Gid> with_gid(const Gid& gid) const;

  std::size_t size() const { return entries_.size(); }
  const std::map<Gid, Entry>& entries() const { return entries_; }
  std::map<Gid, Entry>& entries() { return entries_; }

 private:
  const std::uint32_t entries_max_;
  std::map<Gid, Entry> entries_;
  std::set<std::pair<Time, Gid>> deadlines_;
  std::set<std::pair<Gid, Gid>> by_gid_;  // GID and IP address of all that have an address
  std::list<Entry*> by_use_;              // the same entries, the oldest use first
};

}  // namespace verbena::ipoib
