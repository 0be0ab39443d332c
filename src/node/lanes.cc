// Implements the part of Node that gives programs lanes to each other (link/lane.h).
#include <algorithm>
#include <tuple>
#include <utility>

#include "ipc/lane_messages.h"
#include "link/lane.h"
#include "node/node.h"

namespace verbena::node {

// Asks the owner for the memory of a new lane.  If the programs have a lane with memory already,
// tells the program again that the lane serves the range.  If the lane is being made, does nothing,
// because the program gets the lane later.
Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::AttachLane& m, Time) {
  const auto owns_range = [&](const auto& other) {
    return std::ranges::find(other.second.ranges, m.range) != other.second.ranges.end();
  };
  const auto found = std::ranges::find_if(clients_, owns_range);
  const bool is_allowed = found != clients_.end() && found->first != client &&
                          found->second.program.lanes && clients_.at(client).program.lanes &&
                          lanes_.may_open(client, found->first);
  if (!is_allowed) {
    send_to(client, ipc::encode(0, ipc::NoLane{m.range}));
    return true;
  }
  const ClientId peer = found->first;
  if (const auto lane = lanes_.between(client, peer)) {
    if (lanes_.find(*lane)->ready) {
      send_to(client, ipc::encode(0, ipc::LaneRange{*lane, m.range, true}));
    }
    return true;
  }
  if (const auto lane = lanes_.open(client, peer)) {
    outputs_.emplace_back(LaneMemoryRequest{*lane});
  } else {
    send_to(client, ipc::encode(0, ipc::NoLane{m.range}));
  }
  return true;
}

void Node::on_lane_memory(LaneId lane, const Result<void>& result) {
  const LaneTable::Lane* const entry = lanes_.record_memory(lane, result.has_value());
  if (entry == nullptr) {  // one of the programs has died
    outputs_.emplace_back(LaneHandedOver{lane});
    return;
  }
  const auto [first, second, ready] = *entry;
  // Programs of two users get no access to each other's memory.
  const bool is_same_user = clients_.at(first).program.user == clients_.at(second).program.user;
  const auto send_lane = [&](ClientId client, ClientId peer, link::Lane::Side side) {
    const auto& [ranges, direct] = std::tie(clients_.at(peer).ranges, clients_.at(peer).direct);
    if (ready) {
      ToClient output{
          .client = client,
          .message = ipc::encode(0, ipc::Lane{.lane = lane,
                                              .side = std::to_underlying(side),
                                              .ranges = ranges,
                                              .direct = is_same_user ? direct : ipc::DirectAccess{},
                                              .other_user = !is_same_user}),
          .lane = lane,
          .peer = peer};
      outputs_.emplace_back(std::move(output));
      return;
    }
    for (const std::uint16_t range : ranges) send_to(client, ipc::encode(0, ipc::NoLane{range}));
  };
  send_lane(first, second, link::Lane::Side::kFirst);
  send_lane(second, first, link::Lane::Side::kSecond);
  if (!ready) lanes_.close(lane);
  outputs_.emplace_back(LaneHandedOver{lane});
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::CloseLane& m, Time) {
  const LaneTable::Lane* const lane = lanes_.find(m.lane);
  if (lane == nullptr || (lane->first != client && lane->second != client)) {
    return fail(Errc::kBadHandle, "not a lane of this program");
  }
  report_lane_closed(m.lane, *lanes_.close_and_forbid(m.lane, m.broken), client);
  return false;
}

// Closes the lanes of a program that has ended.
void Node::close_lanes(ClientId client) {
  for (const LaneId lane : lanes_.lanes_of(client)) {
    report_lane_closed(lane, *lanes_.close(lane), client);
  }
  lanes_.forget(client);
}

void Node::report_lane_closed(LaneId lane, const LaneTable::Lane& closed, ClientId closing_client) {
  if (!closed.ready) return;  // the peer does not know the lane yet
  send_to(closed.other(closing_client), ipc::encode(0, ipc::LaneClosed{lane}));
}

// Tells the programs with a lane to `owner` that it has leased a range, or has returned the range.
void Node::report_lane_range(ClientId owner, std::uint16_t range, bool is_leased) {
  for (const LaneId lane : lanes_.lanes_of(owner)) {
    const LaneTable::Lane& entry = *lanes_.find(lane);
    if (entry.ready)
      send_to(entry.other(owner), ipc::encode(0, ipc::LaneRange{lane, range, is_leased}));
  }
}

}  // namespace verbena::node
