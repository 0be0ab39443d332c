#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/uplinks.h"
#include "agent/watch.h"
#include "base/error.h"
#include "base/time.h"
#include "hosts/forwarder.h"
#include "hosts/subnet_groups.h"
#include "ipc/counters.h"
#include "link/burst.h"
#include "link/framing.h"
#include "node/node.h"
#include "subnet/subnet.h"

namespace verbena::hosts {

// Carries the packets of verbs programs, and those of the agents' QP1, through a simulated
// InfiniBand subnet.  The hosts are its HCAs, by their places in the topology.
//
//   program --uplink--> forward() --> Subnet ---uplink--> program
//                                        |  '-----------> Station: packets for the agent
//                                        '--------------> receiver of the MADs of programs
//
// MADs of the CM are for the agent, and so are answers to its SA client and reports of the SA.  The
// first range of QP numbers is the agent's.
//
// It does what an HCA does with a packet between its queue pairs and the port (vol1 9.6.1): the
// SLID is the port's, and P_Key and source GID must be among those of the port.  A program cannot
// send to QP0.
//
// A program whose uplink is full holds up the senders of its packets, as with agent::Uplinks.  One
// packet of each sender, which has passed the subnet already, waits here.
//
// Whoever calls the subnet calls pump() after that.  Only the loop's thread uses this class.
class SubnetSwitch final : public Forwarder, private agent::Uplinks::Reader {
 public:
  // Limits the packets that wait for agents.
  static constexpr std::size_t kAgentPacketsMax = 8192;
  // Limits the packets that wait for one program.
  static constexpr std::size_t kWaitingMax = 2048;

  // Represents the agent of one HCA.
  class Station {
   public:
    virtual void arrived(const link::Arrival& arrival) = 0;
    virtual void port_changed(std::uint8_t port, bool client_reregister) = 0;
    virtual void remark(node::ClientId client, const std::string& text) = 0;

   protected:
    ~Station() = default;
  };
  using MadReceiver = std::move_only_function<void(const subnet::MadDelivery&)>;

  // kSystem: there is no descriptor left.
  static Result<std::unique_ptr<SubnetSwitch>> create(asio::io_context& loop,
                                                      subnet::Topology topology);

  subnet::Subnet& subnet() { return subnet_; }
  // Takes the MADs that are not for agents' CMs.
  void set_mad_receiver(MadReceiver receiver) { mads_ = std::move(receiver); }
  // Calls back soon after the state of ports has changed.
  void when_ports_change(std::move_only_function<void()> call) { ports_changed_ = std::move(call); }
  // Delivers the packets that have arrived at the HCAs, until none is under way.
  void pump(Time now);

  // ---- hosts
  // REQUIRES: the station lives until disconnect().
  void connect(HostIndex hca, Station& station) { stations_[hca] = &station; }
  void disconnect(HostIndex hca) { stations_.erase(hca); }
  // Sends packets of an agent's QP1.
  void send(HostIndex hca, const link::Burst& burst, Time now);
  // Returns the state that the port had when pump() last returned.  REQUIRES: it is a port of an
  // HCA.
  const subnet::PortStatus& status(subnet::PortRef port) const {
    return ports_[port.node][port.port - std::size_t{1}];
  }

  // ---- programs
  agent::Uplinks& uplinks() { return *uplinks_; }
  const agent::Uplinks& uplinks() const { return *uplinks_; }
  // Makes the range, or the agent (Node::kOwnRange), a member of a multicast group at exactly these
  // ports.  kNoResources: SubnetGroups::kMembersMax.
  Result<void> set_members(HostIndex hca, std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> ports);
  // Forgets a program, as agent::Uplinks::detach() does.
  void detach(const agent::ProgramId& program);

  bool forward(Time now) override;
  bool park() override { return uplinks_->park(); }
  void unpark() override { uplinks_->unpark(); }

  void add_counters(std::vector<ipc::NamedCount>& out) const;

 private:
  enum class Drop : std::uint8_t { kMalformed, kForeignPkey, kForeignGid, kInactive, kCount };
  static constexpr std::size_t kDrops = static_cast<std::size_t>(Drop::kCount);
  struct Counters {
    std::uint64_t to_agents = 0;
    std::uint64_t to_nobody = 0;  // no program has the QP number
    std::uint64_t to_groups = 0;  // copies of multicast packets
    std::uint64_t groups_limit = 0;
    std::uint64_t agents_full = 0;
    std::uint64_t waiting_full = 0;
    std::uint64_t wrong_gid = 0;  // the destination's
    std::array<std::uint64_t, kDrops> dropped{};
  };

  SubnetSwitch(asio::io_context& loop, subnet::Topology topology);

  bool pass(const agent::ProgramId& from, const link::Arrival& arrival, Time now,
            bool may_wait) override;
  bool is_held(const agent::ProgramId& sender);
  std::optional<Drop> send_from(HostIndex hca, const link::Arrival& packet, Time now);
  void drop(const agent::ProgramId& from, const link::Arrival& arrival, Drop why);
  std::string reason(Drop why, HostIndex hca, const link::Arrival& packet) const;

  void deliver(subnet::Delivery delivery, Time now);
  void deliver_mad(subnet::Delivery delivery);
  void deliver_to_agent(subnet::Delivery delivery);
  void deliver_to_group(const subnet::Delivery& delivery, Time now);
  void deliver_to_range(std::uint16_t range, subnet::Delivery delivery, Time now);
  // Returns false if the packet has to wait for room.
  bool put(const agent::ProgramId& to, const subnet::Delivery& delivery, Time now);
  bool put_waiting(Time now);
  std::optional<link::Arrival> opened(const subnet::Delivery& delivery);
  void tell_stations();

  subnet::Subnet subnet_;
  std::vector<std::vector<subnet::PortStatus>> ports_{};  // of each node that is an HCA
  MadReceiver mads_{};
  std::move_only_function<void()> ports_changed_ = [] {};
  agent::Timer timer_;
  agent::DeferredCall delivery_;
  std::map<HostIndex, Station*> stations_{};
  std::unique_ptr<agent::Uplinks> uplinks_{};
  SubnetGroups groups_{};
  bool pumping_ = false;

  std::optional<agent::ProgramId> sender_{};  // of the packet in the subnet, if it can wait
  std::map<agent::ProgramId, std::deque<subnet::Delivery>> waiting_{};  // by receiver
  std::map<agent::ProgramId, agent::ProgramId> held_{};          // senders, and for whom they wait
  std::map<agent::ProgramId, std::array<bool, kDrops>> told_{};  // reasons of drops

  std::map<subnet::PortRef, bool> changed_ports_{};  // with client_reregister
  std::deque<subnet::Delivery> agent_packets_{};
  Counters counters_{};
};

}  // namespace verbena::hosts
