#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "hca/engine.h"
#include "ipc/lane_messages.h"
#include "ipc/messages.h"
#include "link/lanes.h"

namespace verbena::process {

// Manages the lanes of a program (link/lane.h).  It detects to which programs of this host the
// program sends packets, asks the agent for lanes to these programs, and passes packets from the
// lanes to the engine.  A lane to the program itself needs no agent.
//
// Programs may access each other's memory directly (link/lane.h).  A command that revokes rights
// calls accesses() for the accesses that began before it, and waits until remove_ended_accesses()
// returns true for them.  So the memory of a closed lane remains mapped until the other program has
// ended its access to this program's memory, or has died.
//
// The owner maps the memory of a lane and calls set_lane_memory(), before it passes on the agent's
// message about the lane.  It unmaps the memory when poll_closed() returns the lane.
class LaneManager {
 public:
  using Id = link::Lanes::Id;
  // Limits how many records (packets, addresses and records of direct accesses) receive() takes out
  // of a lane before it continues with the next lane.
  static constexpr std::size_t kRecordsPerReceive = 64;

  struct Counters {
    std::uint64_t packets_in = 0;
    std::uint64_t broken = 0;   // lanes that were closed because the peer wrote invalid bytes
    std::uint64_t refused = 0;  // lanes that this program could not use
    // Counts packets from other users' programs with a source address that is not of this host.
    // They are dropped, because the kernel would not have sent them by UDP.
    std::uint64_t foreign_sources = 0;
  };

  // REQUIRES: the engine outlives this object.
  explicit LaneManager(hca::Engine& engine) : engine_(engine) {}
  ~LaneManager() {
    engine_.set_lanes(nullptr);
    engine_.set_access_table(nullptr);
  }
  LaneManager(const LaneManager&) = delete;
  LaneManager& operator=(const LaneManager&) = delete;

  // Lets the engine use lanes.
  void enable() { engine_.set_lanes(&lanes_); }
  // Lets the programs at the other ends of later lanes access this program's memory, as this table
  // says (link/peer_memory.h).  REQUIRES: as Engine::set_access_table().
  void publish(link::AccessTable& table) {
    engine_.set_access_table(&table);
    allows_access_ = true;
  }
  // Returns true for an address of this host.
  bool is_of_this_host(const Gid& address) const { return lanes_.has_address(address); }
  // Returns true if the program has a lane to the process of its fabric (ipc::Lane::kUplink).
  bool has_uplink() const { return lanes_.has_uplink(); }

  // ---- the agent ----
  void on_devices(const std::vector<ipc::Device>& devices);
  // Stores the memory that the owner has mapped for a lane.  `peer`, which may be null, accesses
  // the memory of the other program.
  void set_lane_memory(Id lane, std::span<std::byte> memory, link::PeerMemory* peer = nullptr) {
    offered_memory_[lane] = {memory, peer};
  }
  void on(const ipc::Lane& message);
  void on(const ipc::LaneRange& message);
  // Calls take(arrival) and take(executed) for the records of the other program that are still in
  // the lane, for example its last acknowledgements.  Then closes the lane.
  template <class Take>
  void on(const ipc::LaneClosed& message, Take take);
  void on(const ipc::NoLane& message);
  // Closes all lanes.
  void on_agent_died();
  // Allows new requests for lanes that the agent has refused.  Call it when a QP gets a new peer.
  void on_new_peer() { lanes_.forget_refusals(); }
  // Returns the next request for the agent.  `own_ranges` are the QPN ranges of this program.
  std::optional<ipc::AttachLane> poll_request(std::span<const std::uint16_t> own_ranges);
  std::optional<ipc::CloseLane> poll_close_request();
  // Returns the accesses of other programs to this program's memory that have not ended.
  std::vector<link::Lanes::Access> accesses() const { return lanes_.accesses(); }
  // Removes the accesses that have ended.  Returns true if none remains.
  bool remove_ended_accesses(std::vector<link::Lanes::Access>& accesses);
  // Returns a lane whose memory is not used any more.
  std::optional<Id> poll_closed();

  // ---- packets ----
  // Calls take(arrival) for the packets that wait in the lanes, and take(executed) for the records
  // of direct accesses, up to kRecordsPerReceive of each lane.  Returns true if there were packets.
  template <class Take>
  bool receive(Take take);
  // Ends a batch of sent packets, and records for poll_wake() which peers must be woken.
  void flush();
  // Returns a lane whose other program must be woken.  The other program may be this program, see
  // is_own().
  std::optional<Id> poll_wake() { return lanes_.poll_wake(); }
  // Returns true for both ends of the program's lane to itself.
  static constexpr bool is_own(Id id) { return id >= kOwnSecond; }

  // ---- sleeping ----
  // Asks the peers to wake this program.  Returns false if the program must not sleep, because a
  // lane has a packet for the program, or has the buffer space that the program waits for.
  bool park();
  void unpark();

  void set_observer(link::LaneObserver* observer) { lanes_.set_observer(observer); }
  bool empty() const { return lanes_.empty(); }
  std::size_t size() const { return lanes_.size(); }
  const Counters& counters() const { return counters_; }

 private:
  // These ids name the two ends of the lane to the program itself.
  static constexpr Id kOwnFirst = 0xffffffff;
  static constexpr Id kOwnSecond = 0xfffffffe;
  struct alignas(4096) Page {
    std::array<std::byte, 4096> bytes;
  };

  // Returns a function that calls take(arrival) for a packet.  It sets the port of the arrival to
  // the port that has the packet's destination address, because the sender does not know the
  // receiver's ports.  The interface of a multicast packet determines its port.  A packet of
  // another user's program is dropped if its source is not an address of this host.  For a record
  // of a direct access, the function calls take(executed).
  template <class Take>
  auto with_port(Id id, Take& take) {
    const bool of_other_user = !lanes_of_other_users_.empty() && lanes_of_other_users_.contains(id);
    return [this, of_other_user, &take](const auto& record) {
      if constexpr (std::is_same_v<decltype(record), const link::Arrival&>) {
        if (of_other_user && !lanes_.has_address(record.address.source)) {
          ++counters_.foreign_sources;
          return;
        }
        // InfiniBand packets name their port already, and a host with one port needs no lookup.
        if (port_of_gid_.empty() || record.address.is_infiniband()) {
          take(record);
          return;
        }
        link::Arrival arrival = record;
        if (const auto by_gid = port_of_gid_.find(record.address.destination);
            by_gid != port_of_gid_.end()) {
          arrival.address.port = by_gid->second;
        } else if (const auto by_interface = port_of_interface_.find(record.address.interface);
                   by_interface != port_of_interface_.end()) {
          arrival.address.port = by_interface->second;
        }
        take(arrival);
      } else {
        take(record);
      }
    };
  }
  void attach_own(std::uint16_t range);
  void close(Id lane);
  void close_broken();
  void release(Id id, link::Lane& lane);
  // Closes the lingering lanes (link::Lanes::linger()) whose accesses have ended.
  void close_lingering();

  hca::Engine& engine_;
  link::Lanes lanes_{};
  std::map<Gid, PortId> port_of_gid_{};  // empty on a host with one port
  std::map<std::uint32_t, PortId> port_of_interface_{};
  std::unique_ptr<Page[]> own_memory_{};
  struct OfferedMemory {
    std::span<std::byte> memory{};
    link::PeerMemory* peer = nullptr;
  };
  std::map<Id, OfferedMemory> offered_memory_{};
  bool allows_access_ = false;
  std::set<Id> lanes_of_other_users_{};
  std::deque<Id> closed_{};
  std::deque<ipc::CloseLane> close_requests_{};
  Counters counters_{};
};

template <class Take>
bool LaneManager::receive(Take take) {
  bool received = false;
  bool broken = false;
  lanes_.record_wakes([&](Id id, link::Lane& lane) {
    const std::size_t packets = lane.receive(kRecordsPerReceive, with_port(id, take));
    counters_.packets_in += packets;
    received = received || packets != 0;
    const bool peer_waits_for_space = lane.finish();
    broken = broken || lane.ended();
    return peer_waits_for_space && !is_own(id);
  });
  if (broken) close_broken();
  return received;
}

template <class Take>
void LaneManager::on(const ipc::LaneClosed& message, Take take) {
  constexpr std::size_t kRecordsMax = link::Lane::kRingBytes / ring::kRecordAlignment;
  lanes_.for_each([&](Id id, link::Lane& lane) {
    if (id == message.lane) counters_.packets_in += lane.receive(kRecordsMax, with_port(id, take));
  });
  close(message.lane);
}

}  // namespace verbena::process
