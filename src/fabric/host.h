#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "fabric/sim_process.h"
#include "link/burst.h"
#include "node/node.h"
#include "sim/faults.h"

namespace verbena::fabric {

class Network;

// Simulates a whole host in virtual time: the node of an agent, the processes of programs, the
// messages between them, a port with its QPN ranges, and its addresses.
//
//      program   program            The host drives node and processes as agent and client do:
//         |         |               after each input it drains the outputs, sends bursts until
//      Process   Process            there are no more, and sets a timer for the deadline.
//         | ipc     | ipc
//      +--+---------+--+            The range of a packet is the upper 12 bits of its QPN.  Range 0
//      |     Node      |            goes to the node, a leased range to its process.  As in the
//      +-------+-------+            kernel's filter, this holds for corrupt packets too.  Multicast
//              | port, faulty wire  packets go to each process that is a member of the group.
//
// The agent may die (kill_agent).  A new agent may then start (start_agent), and programs connect
// to it (connect_to_agent).  Programs may die (kill).  A host lives as long as its network.
class Host {
 public:
  struct Config {
    std::string name{};
    std::vector<node::HostAddress> addresses{};
    std::vector<node::DeviceConfig> devices{};  // if empty, the host has one device with one port
  };
  struct Counters {
    std::uint64_t to_node = 0;
    std::uint64_t to_programs = 0;
    std::uint64_t without_receiver = 0;
    std::uint64_t wrong_icrc = 0;
  };

  Host(Network& network, const Config& config, Random random);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const std::string& name() const { return config_.name; }
  Network& network() { return network_; }
  const Counters& counters() const { return counters_; }

  // ---- programs
  // Starts the program P(process, arguments...), which lives until kill().
  template <class P, class... Arguments>
  P& run(const std::string& name, Arguments&&... arguments) {
    SimProcess& sim_process = add_process(name);
    P& running = sim_process.install<P>(std::forward<Arguments>(arguments)...);
    send_hello(sim_process);
    return running;
  }
  // Kills the process at once.  The agent detects this a little later.
  void kill(SimProcess::Id id);
  bool is_alive(SimProcess::Id id) const { return sim_processes_.contains(id); }
  // Sends the packets and messages of the process, delivers its notices and sets its timer.  The
  // caller calls pump() after each call of a function of the process.
  void pump(SimProcess& sim_process);

  // ---- the agent
  void kill_agent();
  // Starts an agent.  REQUIRES: no agent is running.
  void start_agent();
  // Connects a process to the new agent by a Hello, as a real program does with its next call.
  // Calls Program::start() when the agent's Welcome arrives.
  void connect_to_agent(SimProcess& sim_process);
  bool has_agent() const { return node_.has_value(); }
  node::Node& node() { return *node_; }
  const node::Node& node() const { return *node_; }
  // Returns the value of the counter of node::Node::counters() with this name.
  std::uint64_t node_counter(std::string_view counter) const;

  // ---- the port
  bool has_address(const Gid& gid) const { return port_of(gid).has_value(); }
  // Returns the port that has the address, or nullopt if the host does not have the address.
  std::optional<PortId> port_of(const Gid& gid) const;
  void set_port_state(PortId port, const node::PortState& state);
  // Returns the number of ranges that are leased or quiescing.
  std::size_t used_range_count() const { return used_ranges_.size(); }
  void receive(const link::Address& address, std::span<const std::byte> datagram);
  bool is_member(const Gid& group) const { return members_.contains(group); }
  // Returns the name of the program or host that receives packets for this QP.
  std::string receiver_name(Qpn qpn) const;
  // Returns the wire of the packets that stay within the host.
  sim::FaultyWire& loopback() { return loopback_; }

 private:
  // Describes the connection between a process and the agent.  Messages arrive in order.
  struct Session {
    std::optional<node::ClientId> client{};
    Time last_arrival_at_agent{};
    Time last_arrival_at_program{};
  };

  SimProcess& add_process(const std::string& name);
  void send_hello(SimProcess& sim_process);
  Duration ipc_delay();
  void send_to_agent(SimProcess::Id id, ipc::Bytes message);
  void send_to_program(SimProcess::Id id, ipc::Bytes message, LaneMemory lane = {});
  void receive_at_agent(SimProcess::Id id, const ipc::Bytes& message);
  void receive_at_program(SimProcess::Id id, const ipc::Bytes& message, const LaneMemory& lane);
  void pump_lanes(SimProcess& sim_process);
  void schedule_lane_receive(SimProcess::Id id);

  void pump_node();
  void carry_out(const node::Node::ToClient& out);
  void carry_out(const node::Node::LeaseRequest& out);
  void carry_out(const node::Node::LaneMemoryRequest& out);
  void carry_out(const node::Node::LaneHandedOver& out) { lane_memory_.erase(out.lane); }
  void carry_out(const node::Node::RouteRequest& out);
  void carry_out(const node::Node::Membership& out);
  void carry_out(const node::Node::RangeReleased& out);
  void carry_out(const node::Node::StateChanged&) {}  // only a real agent logs the change
  Result<node::HostRoute> route(const node::Node::RouteRequest& request) const;
  void lease_range(const node::Node::LeaseRequest& request);
  void close_sockets(SimProcess::Id id);
  SimProcess* process_of(std::uint16_t range);
  void receive(SimProcess& sim_process, const link::Arrival& arrival);

  Network& network_;
  Config config_;
  Random random_;
  sim::FaultyWire loopback_;
  Counters counters_{};
  Guid guid_;

  std::optional<node::Node> node_;
  Time node_timer_deadline_ = kNever;
  std::map<SimProcess::Id, Session> sessions_{};
  std::map<node::ClientId, SimProcess::Id> process_of_client_{};

  std::map<SimProcess::Id, std::unique_ptr<SimProcess>> sim_processes_{};
  SimProcess::Id next_process_ = 1;
  std::set<std::uint16_t> used_ranges_{};  // leased or quiescing ranges
  // process_of_range_ maps each range to the process that receives its packets.
  std::map<std::uint16_t, SimProcess::Id> process_of_range_{};
  std::map<Gid, std::set<std::uint16_t>> members_{};  // the ranges that are members of each group
  // lane_memory_ holds the memory of lanes that the node has not handed over to programs yet.
  std::map<node::LaneId, LaneMemory> lane_memory_{};
};

}  // namespace verbena::fabric
