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

// Carries the packets of verbs programs and of the agents' QP1 through a simulated InfiniBand
// subnet.  The hosts are the HCAs; a HostIndex is an HCA's index in the topology.
//
//   program --uplink--> forward() --> Subnet ---uplink--> program
//                                        |  '-----------> Station: packets for the agent of an HCA
//                                        '--------------> MadReceiver: MADs for programs
//
// MADs of the CM and responses to the agent's SA client go only to the agent.  Reports of the SA go
// to the agent and to programs.  All other MADs go only to programs.
//
// The SLID of a packet is always a LID of its port, as on an HCA (vol1 9.6.1): a program chooses
// only the path bits.  A packet is dropped if the port does not have the packet's P_Key or source
// GID, or if the packet is for QP0.
//
// A full uplink blocks the programs that send to it, as in agent::Uplinks.  One packet of each
// blocked program has already crossed the subnet.  This class stores that packet until the uplink
// has space.
//
// A caller that uses subnet() must call pump() afterwards.  Only the loop's thread uses this class.
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
    // Sends the user of a program a message (agent::Network::User::notify_user()).
    virtual void notify_user(node::ClientId client, const std::string& text) = 0;

   protected:
    ~Station() = default;
  };
  using MadReceiver = std::move_only_function<void(const subnet::MadDelivery&)>;

  // Fails with kSystem if no descriptor is left.
  static Result<std::unique_ptr<SubnetSwitch>> create(asio::io_context& loop,
                                                      subnet::Topology topology);

  subnet::Subnet& subnet() { return subnet_; }
  // Sets the function that gets the MADs for programs.
  void set_mad_receiver(MadReceiver receiver) { mad_receiver_ = std::move(receiver); }
  // Sets a function that is called soon after the state of ports, or what resolves_addresses()
  // returns, has changed.
  void when_ports_change(std::move_only_function<void()> on_change) {
    on_port_change_ = std::move(on_change);
  }
  // Delivers the packets and port events that the subnet has ready, until it has no more.
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
  // Makes the range a member of a multicast group at exactly these ports.  The range of the agent
  // is Node::kOwnRange.  Fails with kNoResources at the limit SubnetGroups::kMembersMax.
  Result<void> set_members(HostIndex hca, std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> ports);
  // Returns true if the port of an HCA is a member of an IPoIB broadcast group, so that addresses
  // are resolved from there.  The range of an agent is in no other group.
  bool resolves_addresses(subnet::PortRef port) const {
    return groups_.is_in_a_group(port.node, port.port, node::Node::kOwnRange);
  }
  // Removes a program, as agent::Uplinks::detach() does.
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
    std::uint64_t unknown_qp = 0;    // no program has the QP number
    std::uint64_t to_groups = 0;     // copies of multicast packets
    std::uint64_t groups_limit = 0;  // set_members() failed
    std::uint64_t agents_full = 0;   // over kAgentPacketsMax
    std::uint64_t waiting_full = 0;  // over kWaitingMax
    std::uint64_t wrong_gid = 0;     // the port does not have the destination GID
    std::array<std::uint64_t, kDrops> dropped{};
  };

  SubnetSwitch(asio::io_context& loop, subnet::Topology topology);

  bool pass(const agent::ProgramId& from, const link::Arrival& arrival, Time now,
            bool may_wait) override;
  // Returns true if the sender must wait until the uplink of another program has space.
  bool is_blocked(const agent::ProgramId& sender);
  std::optional<Drop> send_from(HostIndex hca, const link::Arrival& packet, Time now);
  void drop(const agent::ProgramId& from, const link::Arrival& arrival, Drop why);
  std::string reason(Drop why, HostIndex hca, const link::Arrival& packet) const;

  void deliver(subnet::Delivery delivery, Time now);
  void deliver_mad(subnet::Delivery delivery);
  void deliver_to_agent(subnet::Delivery delivery);
  void deliver_to_group(const subnet::Delivery& delivery, Time now);
  void deliver_to_range(std::uint16_t range, subnet::Delivery delivery, Time now);
  // Returns false if the packet must wait until the uplink has space.
  bool try_deliver(const agent::ProgramId& to, const subnet::Delivery& delivery, Time now);
  bool deliver_waiting(Time now);
  std::optional<link::Arrival> open_delivery(const subnet::Delivery& delivery);
  void notify_stations();

  subnet::Subnet subnet_;
  std::vector<std::vector<subnet::PortStatus>> ports_{};  // by node; a switch has none
  MadReceiver mad_receiver_{};
  std::move_only_function<void()> on_port_change_ = [] {};
  agent::Timer timer_;
  agent::DeferredCall delivery_;
  std::map<HostIndex, Station*> stations_{};
  std::unique_ptr<agent::Uplinks> uplinks_{};
  SubnetGroups groups_{};
  bool is_pumping_ = false;

  // The program that sent the packet which is in the subnet now, if the program can be blocked.
  std::optional<agent::ProgramId> sender_{};
  std::map<agent::ProgramId, std::deque<subnet::Delivery>> waiting_{};  // by receiver
  // Maps each blocked program to the receiver whose uplink is full.
  std::map<agent::ProgramId, agent::ProgramId> blocked_senders_{};
  // Records which reasons for dropped packets were reported to each program.
  std::map<agent::ProgramId, std::array<bool, kDrops>> reported_drops_{};

  // Holds the ports to report to agents, and the client_reregister of each.
  std::map<subnet::PortRef, bool> changed_ports_{};
  bool agent_groups_changed_ = false;
  std::deque<subnet::Delivery> agent_packets_{};
  Counters counters_{};
};

}  // namespace verbena::hosts
