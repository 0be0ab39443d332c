#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/uplinks.h"
#include "agent/watch.h"
#include "base/error.h"
#include "base/time.h"
#include "ethernet/network.h"
#include "hosts/forwarder.h"
#include "hosts/late_packets.h"
#include "ipc/counters.h"
#include "link/burst.h"
#include "link/framing.h"
#include "node/node.h"

namespace verbena::hosts {

using agent::HostIndex;

using ethernet::RailId;

// Forwards the packets of an Ethernet fabric.  Each program has an uplink (uplinks.h).  The switch
// reads a packet from the sender's uplink, asks ethernet::Network for the receiving host, and
// copies the packet to the uplink of that host's program that has the packet's QP number.  Packets
// for QP1 go to the node of the host.
//
//   program --uplink--> forward() --uplink--> program
//                          |  '------------> Station (node of a host)
//   Station --send()-------'
//
// Packets of slow links and of paused hosts wait in LatePackets: before they leave their host, and
// again before they reach another host.
//
// Only the loop's thread uses it.
class Switch final : public Forwarder, private agent::Uplinks::Reader {
 public:
  // Limits the packets that wait for nodes.
  static constexpr std::size_t kNodePacketsMax = 8192;
  // Limits how many reports of dropped packets a program gets.  Each report is for another pair of
  // source and destination.
  static constexpr std::size_t kReportedDropsMax = 16;

  // Represents the node of one host.
  class Station {
   public:
    virtual void arrived(const link::Arrival& arrival) = 0;
    // Sends the user of a program a message (agent::Network::User::notify_user()).
    virtual void notify_user(node::ClientId client, const std::string& text) = 0;

   protected:
    ~Station() = default;
  };

  // Fails with kSystem if no descriptor is left.
  static Result<std::unique_ptr<Switch>> create(asio::io_context& loop, plan::Fabric fabric);

  ethernet::Network& network() { return network_; }

  // ---- hosts
  // REQUIRES: the station lives until disconnect().
  void connect(HostIndex host, Station& station) { stations_[host] = &station; }
  void disconnect(HostIndex host) { stations_.erase(host); }
  // Sends packets of a node.  Other nodes get them after this call has returned.
  void send(HostIndex host, const link::Burst& burst, Time now);

  // ---- programs
  agent::Uplinks& uplinks() { return *uplinks_; }
  const agent::Uplinks& uplinks() const { return *uplinks_; }
  // Removes a program, as agent::Uplinks::detach() does.
  void detach(const agent::ProgramId& program);

  bool forward(Time now) override;
  bool park() override { return uplinks_->park(); }
  void unpark() override { uplinks_->unpark(); }

  void add_counters(std::vector<ipc::NamedCount>& out) const;

 private:
  struct NodePacket {
    HostIndex host = 0;  // the receiver
    link::Address address{};
    std::vector<std::byte> transport{};
  };
  struct Counters {
    std::uint64_t to_nodes = 0;
    std::uint64_t copies = 0;      // for members of multicast groups
    std::uint64_t unknown_qp = 0;  // no program has the QP number, or there is no BTH
    std::uint64_t nodes_full = 0;  // over kNodePacketsMax
    std::uint64_t late_full = 0;   // over faults::DelayLine::kPacketsMax
    std::array<std::uint64_t, ethernet::Network::kDrops> dropped{};
  };

  Switch(asio::io_context& loop, plan::Fabric fabric);

  bool pass(const agent::ProgramId& from, const link::Arrival& arrival, Time now,
            bool may_wait) override;
  // send_from_host(), transmit(), arrive() and deliver() return false if the packet must wait until
  // its receiver has space.  A packet that may not wait is dropped instead.
  bool send_from_host(const Sender& from, const link::Arrival& arrival, Time now, bool may_wait);
  bool transmit(const Sender& from, const link::Arrival& arrival, Time now, bool may_wait);
  bool arrive(RailId rail, const Sender& from, const link::Arrival& arrival, Time now,
              bool may_wait);
  bool deliver(RailId rail, const link::Arrival& arrival, Time now, bool may_wait);
  void deliver_to_members(const Sender& from, const link::Arrival& arrival, Time now);
  void deliver_to_member(RailId rail, std::uint16_t range, const link::Arrival& arrival, Time now);
  bool must_wait(const LatePackets::QueueKey& key) const;
  void add_late(const LatePackets::QueueKey& key, LatePacket packet, Time now);
  void queue_for_node(RailId rail, const link::Arrival& arrival);
  void deliver_to_nodes();
  void drop(const Sender& from, const link::Arrival& arrival, ethernet::Network::Drop why);

  ethernet::Network network_;
  LatePackets late_{};
  agent::Timer late_timer_;
  agent::DeferredCall delivery_;
  std::map<HostIndex, Station*> stations_{};
  std::unique_ptr<agent::Uplinks> uplinks_{};
  // Records the sources and destinations whose dropped packets were reported to each program.
  std::map<agent::ProgramId, std::set<std::pair<Gid, Gid>>> reported_drops_{};
  std::deque<NodePacket> node_packets_{};
  Counters counters_{};
};

}  // namespace verbena::hosts
