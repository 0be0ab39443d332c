#include "process/lane_manager.h"

#include <algorithm>

#include "ipc/lane_messages.h"

namespace verbena::process {

void LaneManager::on_devices(const std::vector<ipc::Device>& devices) {
  std::vector<Gid> addresses;
  std::size_t ports = 0;
  port_of_gid_.clear();
  port_of_interface_.clear();
  for (std::size_t device = 0; device < devices.size(); ++device) {
    std::uint8_t number = 0;
    for (const ipc::Port& port : devices[device].ports) {
      ++number;
      ++ports;
      for (const ipc::GidEntry& entry : port.gids) {
        addresses.push_back(entry.gid);
        const PortId port_id{static_cast<std::uint8_t>(device), number};
        port_of_gid_.emplace(entry.gid, port_id);
        port_of_interface_.emplace(entry.interface, port_id);
      }
    }
  }
  if (ports == 1) port_of_gid_.clear();
  lanes_.set_addresses(std::move(addresses));
}

// Lets the lane of this program to itself serve the range.  Creates the lane if it does not exist.
// Packets enter the lane at one end and arrive at the other end.
void LaneManager::attach_own(std::uint16_t range) {
  if (own_memory_) return lanes_.add_range(kOwnFirst, range);
  constexpr std::size_t kPages = link::Lane::kBytes / sizeof(Page);
  static_assert(kPages * sizeof(Page) == link::Lane::kBytes);
  own_memory_ = std::make_unique<Page[]>(kPages);
  const auto memory = std::as_writable_bytes(std::span(own_memory_.get(), kPages));
  const auto attach = [&](Id id, link::Lane::Side side, std::span<const std::uint16_t> ranges) {
    const auto lane = link::Lane::attach(memory, side);
    return lane && lanes_.add(id, *lane, ranges);
  };
  if (!attach(kOwnFirst, link::Lane::Side::kFirst, {&range, 1}) ||
      !attach(kOwnSecond, link::Lane::Side::kSecond, {})) {
    ++counters_.refused;
    lanes_.remove(kOwnFirst);
  }
  // A sleeping progress thread has not parked the new lane, so it must be woken.
  lanes_.record_wakes([](Id id, const link::Lane&) { return is_own(id); });
}

void LaneManager::on(const ipc::Lane& message) {
  const auto offered = offered_memory_.extract(message.lane);
  Result<void> added = fail(Errc::kSystem, "the lane's memory is missing");
  if (offered) {
    const auto side = message.side == 0 ? link::Lane::Side::kFirst : link::Lane::Side::kSecond;
    link::PeerMemory* const peer = offered.mapped().peer;
    auto lane = link::Lane::attach(offered.mapped().memory, side);
    if (lane) {
      lane->set_peer_memory(peer);
      // Without `peer` this program could not detect the death of the other program during an
      // access, and would wait forever for the end of the access.
      lane->allow_access(allows_access_ && peer != nullptr);
    }
    added = lane ? lanes_.add(message.lane, *lane, message.ranges) : std::unexpected(lane.error());
    if (lane && !added) lane->allow_access(false);
  }
  if (added) {
    if (message.lane == ipc::Lane::kUplink) {
      lanes_.set_uplink(message.lane);
      enable();  // even without Config::lanes, because this program has no sockets
    } else if (message.other_user) {
      lanes_of_other_users_.insert(message.lane);
    }
    return;
  }
  ++counters_.refused;
  close_requests_.push_back({.lane = message.lane, .broken = false});
  if (offered) closed_.push_back(message.lane);
  for (const std::uint16_t range : message.ranges) lanes_.refuse(range);
}

void LaneManager::on(const ipc::LaneRange& message) {
  if (message.taken) {
    lanes_.add_range(message.lane, message.range);
  } else {
    lanes_.remove_range(message.lane, message.range);
  }
}

void LaneManager::on(const ipc::NoLane& message) { lanes_.refuse(message.range); }

void LaneManager::on_agent_died() {
  engine_.detach_lanes();
  lanes_.for_each([this](Id id, link::Lane& lane) {
    if (!is_own(id)) release(id, lane);
  });
  for (const auto& [id, memory] : offered_memory_) closed_.push_back(id);
  lanes_.clear();
  offered_memory_.clear();
  close_requests_.clear();
  own_memory_.reset();
}

void LaneManager::close(Id lane) {
  lanes_.for_each([&](Id id, link::Lane& closing) {
    if (id != lane) return;
    engine_.detach_lane(closing);
    release(id, closing);
  });
  lanes_.remove(lane);
}

// Gives the memory of a lane back to the owner as soon as no access is under way.
void LaneManager::release(Id id, link::Lane& lane) {
  lane.allow_access(false);
  lanes_of_other_users_.erase(id);
  lanes_.linger(id, lane);
  close_lingering();
}

void LaneManager::close_lingering() {
  lanes_.end_lingering([this](Id id, const link::Lane& lane) {
    link::PeerMemory* const peer = lane.peer_memory();
    if (lane.peer_access_number() != 0 && peer != nullptr && peer->exists()) return false;
    closed_.push_back(id);
    return true;
  });
}

bool LaneManager::remove_ended_accesses(std::vector<link::Lanes::Access>& accesses) {
  close_lingering();
  return lanes_.remove_ended_accesses(accesses);
}

void LaneManager::close_broken() {
  std::vector<Id> broken;
  lanes_.for_each([&](Id id, const link::Lane& lane) {
    if (lane.ended()) broken.push_back(id);
  });
  for (const Id id : broken) {
    ++counters_.broken;
    close_requests_.push_back({.lane = id, .broken = true});
    close(id);
  }
}

std::optional<ipc::AttachLane> LaneManager::poll_request(
    std::span<const std::uint16_t> own_ranges) {
  while (const auto range = lanes_.poll_range_without_lane()) {
    if (std::ranges::find(own_ranges, *range) == own_ranges.end()) return ipc::AttachLane{*range};
    attach_own(*range);
  }
  return {};
}

std::optional<ipc::CloseLane> LaneManager::poll_close_request() {
  if (close_requests_.empty()) return {};
  const ipc::CloseLane request = close_requests_.front();
  close_requests_.pop_front();
  return request;
}

std::optional<LaneManager::Id> LaneManager::poll_closed() {
  close_lingering();
  if (closed_.empty()) return {};
  const Id id = closed_.front();
  closed_.pop_front();
  return id;
}

void LaneManager::flush() {
  lanes_.record_wakes([](Id, link::Lane& lane) { return lane.flush(); });
}

bool LaneManager::park() {
  bool may_sleep = true;
  lanes_.for_each([&](Id, link::Lane& lane) { may_sleep = may_sleep && lane.park(); });
  return may_sleep;
}

void LaneManager::unpark() {
  lanes_.for_each([](Id, link::Lane& lane) { lane.unpark(); });
}

}  // namespace verbena::process
