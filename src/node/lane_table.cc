#include "node/lane_table.h"

#include <algorithm>

namespace verbena::node {

std::size_t LaneTable::count_of(ClientId client) const {
  const auto found = of_.find(client);
  return found == of_.end() ? 0 : found->second.size();
}

Result<LaneId> LaneTable::open(ClientId first, ClientId second) {
  VB_CHECK(first != second && !between(first, second));
  if (count_of(first) >= kPerProgramMax || count_of(second) >= kPerProgramMax) {
    ++counters_.limit_program;
    return fail(Errc::kNoResources, "the limit of lanes of a program (kPerProgramMax) is reached");
  }
  if (lanes_.size() >= kPerHostMax) {
    ++counters_.limit_host;
    return fail(Errc::kNoResources, "the limit of lanes of a host (kPerHostMax) is reached");
  }
  const LaneId lane = next_++;
  lanes_[lane] = {.first = first, .second = second};
  between_[key(first, second)] = lane;
  of_[first].push_back(lane);
  of_[second].push_back(lane);
  return lane;
}

const LaneTable::Lane* LaneTable::made(LaneId lane, bool good) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return nullptr;
  found->second.ready = good;
  ++(good ? counters_.opened : counters_.failed);
  return &found->second;
}

std::optional<LaneTable::Lane> LaneTable::close(LaneId lane) {
  const auto node = lanes_.extract(lane);
  if (!node) return {};
  const Lane& closed = node.mapped();
  between_.erase(key(closed.first, closed.second));
  for (const ClientId client : {closed.first, closed.second}) {
    const auto its = of_.find(client);
    std::erase(its->second, lane);
    if (its->second.empty()) of_.erase(its);
  }
  return closed;
}

std::optional<LaneTable::Lane> LaneTable::close_and_bar(LaneId lane, bool broken) {
  const auto closed = close(lane);
  if (!closed) return {};
  ++(broken ? counters_.broken : counters_.unusable);
  barred_.insert(key(closed->first, closed->second));
  return closed;
}

void LaneTable::forget(ClientId client) {
  std::erase_if(barred_, [client](const auto& pair) {
    return pair.first == client || pair.second == client;
  });
}

const LaneTable::Lane* LaneTable::find(LaneId lane) const {
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? nullptr : &found->second;
}

std::optional<LaneId> LaneTable::between(ClientId one, ClientId other) const {
  const auto found = between_.find(key(one, other));
  return found == between_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<LaneId> LaneTable::of(ClientId client) const {
  const auto found = of_.find(client);
  return found == of_.end() ? std::vector<LaneId>{} : found->second;
}

}  // namespace verbena::node
