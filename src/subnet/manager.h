#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/strong.h"
#include "base/time.h"
#include "mad/mad.h"
#include "subnet/managed_fabric.h"
#include "wire/smp.h"

namespace verbena::subnet {

// Manages a subnet in a simulation.  It finds all nodes by directed routes, assigns LIDs, writes
// linear forwarding tables with the fewest hops, and brings ports to the state Active (vol1 14.4).
//
// It is not a complete subnet manager.  It has only the default partition, and no multicast, LMC or
// SA.  It must be the only manager.  Use OpenSM outside simulations in virtual time.
//
// It sweeps the subnet at the beginning, after a trap about a change, and after each
// sweep_interval.  If a node does not respond, or refuses a request, the sweep ends, and another
// sweep begins after response_timeout, or at the next trap.  The owner sends the MADs of
// next_send() from QP0 of the manager's port, and passes MADs that arrive there to receive().  Only
// one thread at a time may use a Manager.
class Manager {
 public:
  struct Config {
    Duration sweep_interval = std::chrono::seconds(10);
    Duration response_timeout = std::chrono::milliseconds(100);
    unsigned tries = 3;
    unsigned requests_max = 32;  // the limit of outstanding requests
  };

  explicit Manager(const Config& config) : config_(config) {}

  // Handles a MAD that has arrived at QP0.  Ignores MADs other than answers and traps.
  void receive(const mad::Address& from, const mad::Mad& mad, Time now);
  std::optional<mad::SendMad> next_send();
  Time next_deadline() const;
  void advance(Time now);

  // Returns true if the last sweep is complete, and no change was reported since it began.  Also
  // returns true before the first sweep.
  bool is_up() const { return phase_ == Phase::kIdle && !needs_sweep_; }
  std::uint64_t sweeps() const { return sweeps_; }

 private:
  // Names the phases of a sweep, in their order.  A phase begins when all requests of the previous
  // phase have been answered.
  enum class Phase : std::uint8_t { kIdle, kDiscover, kConfigure, kRoute, kArm, kActivate };

  struct Request {
    wire::Smp smp{};
    // The first request of a sweep goes to the manager's own node.  Other requests for NodeInfo go
    // to the neighbor at `port` of `node`.  Requests for PortInfo are about `port` of `node`.
    std::size_t node = 0;  // an index in fabric_
    std::uint8_t port = 0;
    unsigned tries = 0;
    Time deadline{};
  };

  void begin_sweep(Time now);
  void begin_phase(Phase phase);
  void end_phase(Time now);
  void give_up(Time now);

  void request_attribute(std::size_t node, wire::Method method, wire::SmpAttribute attribute,
                         std::uint32_t modifier, std::uint8_t port, const wire::SmpData& data = {});
  void probe(std::size_t node, std::uint8_t port);
  void queue_request(Request request);
  void send(std::uint64_t transaction_id, Request& request, Time now);
  void send_queued(Time now);

  void receive_trap(const mad::Address& from, wire::Smp smp);
  void receive_answer(const Request& request, const wire::Smp& answer);
  void receive_node_info(const Request& request, const wire::NodeInfo& info);
  void receive_port_info(const Request& request, const wire::PortInfo& info);

  void configure();
  void route();
  void change_states(wire::PortState from, wire::PortState to);
  Lid lid_for(Guid port_guid);

  Config config_;
  Phase phase_ = Phase::kIdle;
  bool needs_sweep_ = false;
  bool has_started_ = false;
  std::uint64_t sweeps_ = 0;
  Time next_sweep_{};
  std::uint64_t next_transaction_id_ = 1;
  ManagedFabric fabric_{};
  std::deque<Request> queued_{};
  std::map<std::uint64_t, Request> pending_{};  // by transaction id
  std::deque<mad::SendMad> sends_{};
  std::map<std::uint64_t, Lid> lids_{};  // by port GUID; a port that returns gets its old LID
};

}  // namespace verbena::subnet
