#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/counter_names.h"
#include "base/error.h"
#include "link/lanes.h"

namespace verbena::node {

// Identifies a connected program for the life of its connection.
using ClientId = std::uint64_t;
using LaneId = std::uint32_t;

// Lists the lanes (link/lane.h) between the programs of a host.  Two programs have at most one
// lane.
class LaneTable {
 public:
  // Limits the lanes of a program and of a host.  A lane needs half a megabyte.
  static constexpr std::size_t kPerProgramMax = link::Lanes::kPeersMax;
  static constexpr std::size_t kPerHostMax = 1024;

  struct Lane {
    ClientId first = 0;
    ClientId second = 0;
    bool ready = false;  // the memory of the lane has been made

    ClientId other(ClientId client) const { return client == first ? second : first; }
  };
  struct Counters {
    std::uint64_t opened = 0;
    std::uint64_t failed = 0;         // lanes whose memory could not be made
    std::uint64_t broken = 0;         // a program has reported that its peer broke the lane
    std::uint64_t unusable = 0;       // a program has reported that it could not use the lane
    std::uint64_t limit_program = 0;  // refused because of kPerProgramMax
    std::uint64_t limit_host = 0;     // refused because of kPerHostMax
  };

  // Adds a lane.  Fails with kNoResources at a limit.  REQUIRES: the two programs have no lane.
  Result<LaneId> open(ClientId first, ClientId second);
  // Records whether the owner of the node could make the memory of the lane.  Returns the lane, or
  // null if the lane was closed meanwhile.
  const Lane* record_memory(LaneId lane, bool is_ready);
  // Removes a lane and returns it; nothing if it does not exist.
  std::optional<Lane> close(LaneId lane);
  // Removes a lane that a program has broken (`broken` is true) or could not use, and returns it;
  // nothing if it does not exist.  The two programs cannot open another lane.
  std::optional<Lane> close_and_forbid(LaneId lane, bool broken);
  bool may_open(ClientId one, ClientId other) const {
    return !forbidden_pairs_.contains(key(one, other));
  }
  // Removes the forbidden pairs of a program that has ended.  REQUIRES: its lanes are closed.
  void forget(ClientId client);

  const Lane* find(LaneId lane) const;
  std::optional<LaneId> between(ClientId one, ClientId other) const;
  std::vector<LaneId> lanes_of(ClientId client) const;
  const Counters& counters() const { return counters_; }
  std::size_t size() const { return lanes_.size(); }

 private:
  static std::pair<ClientId, ClientId> key(ClientId one, ClientId other) {
    return std::minmax(one, other);
  }
  std::size_t lane_count(ClientId client) const;

  std::map<LaneId, Lane> lanes_{};
  std::map<std::pair<ClientId, ClientId>, LaneId> by_pair_{};
  std::map<ClientId, std::vector<LaneId>> by_client_{};
  std::set<std::pair<ClientId, ClientId>> forbidden_pairs_{};  // the pairs that cannot open a lane
  LaneId next_lane_ = 1;
  Counters counters_{};
};

inline constexpr auto kLaneCounterNames = std::to_array<MemberName<LaneTable::Counters>>({
    {&LaneTable::Counters::opened, "lanes_opened"},
    {&LaneTable::Counters::failed, "lanes_failed"},
    {&LaneTable::Counters::broken, "lanes_broken"},
    {&LaneTable::Counters::unusable, "lanes_unusable"},
    {&LaneTable::Counters::limit_program, "limit_lanes_of_client"},
    {&LaneTable::Counters::limit_host, "limit_lanes"},
});
static_assert(names_every_counter(kLaneCounterNames));

}  // namespace verbena::node
