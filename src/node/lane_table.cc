#include "node/lane_table.h"

#include <algorithm>

namespace verbena::node {

std::size_t LaneTable::lane_count(ClientId client) const {
  const auto found = by_client_.find(client);
  return found == by_client_.end() ? 0 : found->second.size();
}

Result<LaneId> LaneTable::open(ClientId first, ClientId second) {
  VB_CHECK(first != second && !between(first, second));
  if (lane_count(first) >= kPerProgramMax || lane_count(second) >= kPerProgramMax) {
    ++counters_.limit_program;
    return fail(Errc::kNoResources, "the limit of lanes of a program (kPerProgramMax) is reached");
  }
  if (lanes_.size() >= kPerHostMax) {
    ++counters_.limit_host;
    return fail(Errc::kNoResources, "the limit of lanes of a host (kPerHostMax) is reached");
  }
  const LaneId lane = next_lane_++;
  lanes_[lane] = {.first = first, .second = second};
  by_pair_[key(first, second)] = lane;
  by_client_[first].push_back(lane);
  by_client_[second].push_back(lane);
  return lane;
}

const LaneTable::Lane* LaneTable::record_memory(LaneId lane, bool is_ready) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return nullptr;
  found->second.ready = is_ready;
  ++(is_ready ? counters_.opened : counters_.failed);
  return &found->second;
}

std::optional<LaneTable::Lane> LaneTable::close(LaneId lane) {
  const auto node = lanes_.extract(lane);
  if (!node) return {};
  const Lane& closed = node.mapped();
  by_pair_.erase(key(closed.first, closed.second));
  for (const ClientId client : {closed.first, closed.second}) {
    const auto of_client = by_client_.find(client);
    std::erase(of_client->second, lane);
    if (of_client->second.empty()) by_client_.erase(of_client);
  }
  return closed;
}

std::optional<LaneTable::Lane> LaneTable::close_and_forbid(LaneId lane, bool broken) {
  const auto closed = close(lane);
  if (!closed) return {};
  ++(broken ? counters_.broken : counters_.unusable);
  forbidden_pairs_.insert(key(closed->first, closed->second));
  return closed;
}

void LaneTable::forget(ClientId client) {
  std::erase_if(forbidden_pairs_, [client](const auto& pair) {
    return pair.first == client || pair.second == client;
  });
}

const LaneTable::Lane* LaneTable::find(LaneId lane) const {
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? nullptr : &found->second;
}

std::optional<LaneId> LaneTable::between(ClientId one, ClientId other) const {
  const auto found = by_pair_.find(key(one, other));
  return found == by_pair_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<LaneId> LaneTable::lanes_of(ClientId client) const {
  const auto found = by_client_.find(client);
  return found == by_client_.end() ? std::vector<LaneId>{} : found->second;
}

}  // namespace verbena::node
