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
#include "fabric/seat.h"
#include "link/burst.h"
#include "node/node.h"
#include "sim/faults.h"

namespace verbena::fabric {

class Network;

// A whole host in virtual time: the node that an agent would run, the processes that programs would
// run, messages between them, a port with its QPN ranges, and a table of addresses.
//
//      program   program            Each is driven as agent and client drive theirs: after an
//         |         |               input its outputs are drained, bursts are sent until it has no
//      Process   Process            more, and the deadline is asked for.
//         | ipc     | ipc
//      +--+---------+--+            Packets go by the upper 12 bits of their QPN, corrupt or not,
//      |     Node      |            as the kernel's filter would have it: range 0 is the node's, a
//      +-------+-------+            leased one its process's, any other nobody's.  Those for a
//              | port, faulty wire  multicast group go to each process that is a member.
//
// The agent may die (kill_agent), another one may start (start_agent) and be found by who needs it
// (join); programs may die (kill).  A host lives as long as its network.
class Host {
 public:
  struct Config {
    std::string name{};
    std::vector<node::HostAddress> addresses{};
  };
  struct Counters {
    std::uint64_t to_node = 0;
    std::uint64_t to_programs = 0;
    std::uint64_t to_nobody = 0;
    std::uint64_t wrong_icrc = 0;
  };

  Host(Network& network, const Config& config, Random random);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const std::string& name() const { return config_.name; }
  Network& network() { return network_; }
  const Counters& counters() const { return counters_; }

  // ---- programs
  // Starts a program: P(seat, arguments...), which lives until kill().
  template <class P, class... Arguments>
  P& run(const std::string& name, Arguments&&... arguments) {
    Seat& seat = add_seat(name);
    P& running = seat.install<P>(std::forward<Arguments>(arguments)...);
    say_hello(seat);
    return running;
  }
  // The process is gone, from one moment to the next; the agent hears of it.
  void kill(Seat::Id seat);
  bool alive(Seat::Id seat) const { return seats_.contains(seat); }
  // Carries out what calls to the seat's process have led to.
  void pump(Seat& seat);

  // ---- the agent
  void kill_agent();
  // The next agent.  REQUIRES: there is none.
  void start_agent();
  // As the next call of a program would: says Hello again.  What runs there is started once it is
  // welcomed.
  void join(Seat& seat);
  bool has_agent() const { return node_.has_value(); }
  node::Node& node() { return *node_; }
  const node::Node& node() const { return *node_; }
  // One of node::Node::counters(), by its name.
  std::uint64_t node_counter(std::string_view counter) const;

  // ---- the port
  bool has_address(const Gid& gid) const;
  // Ranges leased or resting.
  std::size_t ranges_taken() const { return taken_.size(); }
  void receive(const link::Flow& flow, std::span<const std::byte> datagram);
  bool is_member(const Gid& group) const { return members_.contains(group); }
  // Who gets packets for this QP.
  std::string who(Qpn qpn) const;
  sim::FaultyWire& loopback() { return loopback_; }

 private:
  // The way between a seat and the agent.  Messages arrive in order.
  struct Session {
    std::optional<node::ClientId> client{};
    Time last_to_agent{};
    Time last_to_program{};
  };

  Seat& add_seat(const std::string& name);
  void say_hello(Seat& seat);
  Duration ipc_delay();
  void to_agent(Seat::Id seat, ipc::Bytes message);
  void to_program(Seat::Id seat, ipc::Bytes message);
  void agent_receives(Seat::Id seat, const ipc::Bytes& message);
  void program_receives(Seat::Id seat, const ipc::Bytes& message);

  void pump_node();
  void act(const node::Node::ToClient& out);
  void act(const node::Node::LeaseWanted& out);
  void act(const node::Node::RouteWanted& out);
  void act(const node::Node::Membership& out);
  void act(const node::Node::RangeFree& out);
  void act(const node::Node::StateChanged&) {}  // only with a log
  Result<node::HostRoute> route(const node::Node::RouteWanted& wanted) const;
  void give_range(const node::Node::LeaseWanted& wanted);
  void close_sockets(Seat::Id seat);
  Seat* seat_of(std::uint16_t range);
  void receive(Seat& seat, const link::Arrival& arrival);

  Network& network_;
  Config config_;
  Random random_;
  sim::FaultyWire loopback_;
  Counters counters_{};
  Guid guid_;

  std::optional<node::Node> node_;
  Time node_armed_ = kNever;
  std::map<Seat::Id, Session> sessions_{};
  std::map<node::ClientId, Seat::Id> seat_of_client_{};

  std::map<Seat::Id, std::unique_ptr<Seat>> seats_{};
  Seat::Id next_seat_ = 1;
  std::set<std::uint16_t> taken_{};                    // ranges that nobody else gets
  std::map<std::uint16_t, Seat::Id> seat_of_range_{};  // where packets of a range go
  std::map<Gid, std::set<std::uint16_t>> members_{};   // ranges in multicast groups
};

}  // namespace verbena::fabric
