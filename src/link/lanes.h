#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "link/lane.h"

namespace verbena::link {

// Finds the lane for a packet.  A process has at most one lane to each other process of its host.
// Each process has ranges of QP numbers, so the QP number of a packet's destination identifies a
// process.  The upper 12 bits of a QP number are the number of its range.
//
// On a virtual host a process also has an uplink: a lane to the process of the fabric, which
// forwards packets to any host of the fabric.  A program of an agent of another user has an uplink,
// too: a lane to the agent, which forwards packets.  All InfiniBand packets use the uplink, because
// the states and P_Keys of ports affect InfiniBand packets even within a host.
//
// find() records the ranges of this host for which there is no lane.  The owner gets these ranges
// from poll_range_without_lane(), and requests lanes from the agent.  Until there is a lane,
// packets use the uplink, or UDP if there is no uplink.
//
// Threads: one at a time.
class Lanes {
 public:
  using Id = std::uint32_t;  // the agent assigns the ids
  static constexpr std::size_t kPeersMax = 64;
  // Besides the lanes to peers, a process may have two entries for the ends of a lane to itself,
  // and an uplink.
  static constexpr std::size_t kLanesMax = kPeersMax + 3;
  static constexpr std::size_t kRanges = 4096;
  static constexpr std::uint32_t kRangeQpns = 4096;

  // Sets the addresses of this host.  Packets to other addresses can only use the uplink.
  void set_addresses(std::vector<Gid> addresses) { addresses_ = std::move(addresses); }

  bool has_address(const Gid& address) const {
    return std::ranges::find(addresses_, address) != addresses_.end();
  }

  // Returns the lane to the process of this host that has this QP.  For an InfiniBand packet, a
  // packet to another host, or without such a lane, returns the uplink, or null if there is no
  // uplink.  Ignores lanes that have ended.  The pointer is valid until the lane is removed.
  Lane* find(const Address& address, Qpn destination) {
    const Place place = place_of_range_[destination.value / kRangeQpns];
    if (place != kNone && !address.is_infiniband() && has_address(address.destination)) {
      if (place == kUnknown) {
        note_wanted(static_cast<std::uint16_t>(destination.value / kRangeQpns));
      } else if (!places_[place]->lane.ended()) {
        return &places_[place]->lane;
      }
    }
    return uplink_ == kNone || places_[uplink_]->lane.ended() ? nullptr : &places_[uplink_]->lane;
  }

  // Adds a lane to the process that has these ranges.  kNoResources: there are kLanesMax lanes.
  // kInvalidArgument: there is a lane with this id.
  Result<void> add(Id id, const Lane& lane, std::span<const std::uint16_t> ranges);
  // The next functions note that the process at the other end of a lane has got another range, or
  // has returned a range.  They ignore unknown lanes.
  void add_range(Id id, std::uint16_t range);
  void remove_range(Id id, std::uint16_t range);
  // Makes a lane the uplink, in place of an earlier uplink.  Ignores unknown lanes.
  void set_uplink(Id id);
  bool has_uplink() const { return uplink_ != kNone; }
  // Removes the lane and the ranges of its process.  Ignores unknown lanes.
  void remove(Id id);
  // Removes all lanes, ranges and refusals, except lingering lanes.
  void clear();
  // Keeps a lane that the owner is about to remove, because its peer may still access this
  // process's memory.  accesses() contains the access until the owner ends the lingering.
  void linger(Id id, const Lane& lane) { lingering_.insert_or_assign(id, lane); }
  // Calls may_end(id, lane) for each lingering lane.  If the result is true, forgets the lane.
  template <class MayEnd>
  void end_lingering(MayEnd may_end) {
    std::erase_if(lingering_,
                  [&](const auto& entry) { return may_end(entry.first, entry.second); });
  }
  // Shows the packets of all lanes to an observer, also those of lanes that are added later.  Null
  // removes the observer.  REQUIRES: the observer outlives the lanes.
  void set_observer(LaneObserver* observer);
  // Notes that the agent has refused a lane to this range.  poll_range_without_lane() does not
  // return the range again until forget_refusals() is called.
  void refuse(std::uint16_t range);
  // After this call, find() records the ranges without a lane again.
  void forget_refusals();

  // Returns a range of this host for which find() had no lane, or none.  Returns each recorded
  // range once.
  std::optional<std::uint16_t> poll_range_without_lane();

  // Calls visit(id, lane) for each lane.
  template <class Visit>
  void for_each(Visit visit) {
    for (const auto& entry : used_places()) {
      if (entry) visit(entry->id, entry->lane);
    }
  }
  // Calls must_wake(id, lane) for each lane.  If the result is true, poll_wake() will return the
  // lane.
  template <class MustWake>
  void record_wakes(MustWake must_wake) {
    for (const auto& entry : used_places()) {
      if (!entry || !must_wake(entry->id, entry->lane)) continue;
      entry->wake_is_due = any_wake_is_due_ = true;
    }
  }
  // Identifies an access of a peer to this process's memory (Lane::peer_access_number()).
  struct Access {
    Id lane = 0;
    std::uint64_t number = 0;
  };
  // Returns the accesses that are in progress.  Accesses that begin later do not find rows that
  // were removed from the access table before this call.
  std::vector<Access> accesses() const;
  // Removes from the list the accesses that have ended, and those of removed lanes that do not
  // linger.  Returns true if the list is then empty.
  bool remove_ended_accesses(std::vector<Access>& accesses) const;
  // Returns a lane that record_wakes() has recorded, or none.  The caller must wake the process at
  // the other end of the lane.  Returns each recorded lane once.
  std::optional<Id> poll_wake();
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }

 private:
  // Holds the index of a lane in places_.  If a range has no lane, holds one of the next two
  // values.
  using Place = std::uint8_t;
  // The range has no lane.  find() will record it for poll_range_without_lane().
  static constexpr Place kUnknown = 0xff;
  // The range has no lane.  find() has recorded it already, or the agent has refused a lane.
  static constexpr Place kNone = 0xfe;
  static_assert(kLanesMax < kNone);
  struct Entry {
    Id id;
    Lane lane;
    bool wake_is_due = false;
  };

  static constexpr std::array<Place, kRanges> all_unknown() {
    std::array<Place, kRanges> places{};
    places.fill(kUnknown);
    return places;
  }
  void note_wanted(std::uint16_t range);
  std::optional<Place> place_of(Id id) const;
  // Returns the lane with this id, which may be lingering, or null.
  const Lane* find_with_lingering(Id id) const;
  // Returns places_ up to the last entry that is in use.  Each poll visits only these places,
  // because most processes have few lanes.
  std::span<const std::unique_ptr<Entry>> used_places() const {
    return std::span(places_).first(end_);
  }

  std::vector<Gid> addresses_{};
  std::array<Place, kRanges> place_of_range_ = all_unknown();
  std::array<std::unique_ptr<Entry>, kLanesMax> places_{};
  std::size_t count_ = 0;
  std::size_t end_ = 0;  // places_ is unused from this index on
  Place uplink_ = kNone;
  LaneObserver* observer_ = nullptr;
  bool any_wake_is_due_ = false;
  std::deque<std::uint16_t> wanted_ranges_{};
  std::map<Id, Lane> lingering_{};
};

}  // namespace verbena::link
