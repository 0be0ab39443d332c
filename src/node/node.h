#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/time.h"
#include "hca/engine.h"
#include "ipc/messages.h"
#include "link/burst.h"
#include "link/framing.h"
#include "mad/dispatcher.h"
#include "node/general_services.h"
#include "node/gid_table.h"
#include "rdmacm/manager.h"

namespace verbena::node {

// A connected program, for the life of its connection.
using ClientId = std::uint64_t;

// What the kernel's routing table says of a destination.
struct HostRoute {
  Gid source{};
  std::uint32_t interface = 0;
  std::uint32_t mtu_bytes = 0;
  bool loopback = false;
};

// The shared half of one host, as one object: QP1 and its connection managers, the GID table, the
// QPN ranges, and the ids of all programs.  What the kernel is to a real adapter.
//
// Pure: packets, messages and time come in, poll() and transmit() give what goes out; the agent
// runs it between real sockets, a simulation between simulated ones.  One thread owns it.
//
// From wire to event without a change of thread: receive() takes a MAD from QP1's completion queue,
// matches it, runs the state machines, and the message for the program is there for poll() when it
// returns.
//
// Spec: vol1 13.5 (QP1), 12 (CM), annex A11 (RDMA IP CM), annex A17 (RoCEv2).
class Node {
 public:
  struct Config {
    Guid node_guid{};
    // QPN ranges: those of as many QPs as an engine can have.
    std::uint32_t leases_per_client_max = hca::Limits{}.qps / ipc::kLeaseQpns;
    std::string build{};
    std::uint32_t pid = 0;
    // Multicast groups that the programs' sockets may be members of: as many as an engine has.
    std::uint32_t groups_per_client_max = hca::Limits{}.groups;
    // How long a range that was returned, or whose program has died, rests before another program
    // gets it.  If none is free meanwhile, or the program has as many as it may, a lease waits for
    // one that rests.
    Duration range_rest = std::chrono::seconds(1);
    bool trace = false;  // give StateChanged
  };

  // A message for a program.  With `sockets`, the data sockets of that range go along.
  struct ToClient {
    ClientId client = 0;
    ipc::Bytes message{};
    std::optional<std::uint16_t> sockets{};
  };
  // Questions to the owner, which answers with leased(), routed() and joined().
  struct LeaseWanted {
    std::uint64_t token = 0;
    ClientId client = 0;
    // Numbers that a QP of a dead agent's time still has: not to be given.
    std::vector<std::uint16_t> avoid{};
  };
  struct RouteWanted {
    std::uint64_t token = 0;
    Gid destination{};
    std::optional<Gid> source{};
    std::uint32_t scope = 0;
  };
  // The sockets of the range are to be members of the group on these interfaces and no others.
  struct Membership {
    std::uint64_t token = 0;  // 0: nobody wants an answer
    std::uint16_t range = 0;
    Gid group{};
    std::vector<std::uint32_t> interfaces{};
  };
  // The range's rest is over: its sockets may be drained and used again.
  struct RangeFree {
    std::uint16_t range = 0;
  };
  // For a log: what has become of a connection.
  using StateChanged = cm::StateChanged;
  using Output =
      std::variant<ToClient, LeaseWanted, RouteWanted, Membership, RangeFree, StateChanged>;

  Node(const Config& config, Random random);

  // The host's addresses, now and after each change.  An index in the GID table never moves.
  void on_addresses(const std::vector<HostAddress>& addresses, Time now);
  // Why there is no port (taken, by whom), or nothing if there is one.
  void set_port(std::optional<std::string> why_down, Time now);

  // A program said Hello and was welcomed.  `pid` is for messages to other programs; 0: not known.
  ClientId connected(Time now, std::uint32_t pid = 0);
  // It is dead, has closed the connection, or has called exec.
  void gone(ClientId client, Time now);
  // The agent ends: more of what was to be said to peers in its time is said now.  False: that was
  // all.
  bool hurry(Time now);
  // A request of a program, ipc::is_for_node().
  void on_message(ClientId client, std::span<const std::byte> message, Time now);
  void leased(std::uint64_t token, const Result<std::uint16_t>& range, Time now);
  void routed(std::uint64_t token, const Result<HostRoute>& route, Time now);
  void joined(std::uint64_t token, const Result<void>& result);

  void receive(const link::Arrival& arrival, Time now);
  void on_timer(Time now);
  Time deadline() const;

  std::optional<Output> poll();
  // Packets of QP1; true if more remain.
  bool transmit(link::Burst& burst, Time now);

  // What a program is told when it says Hello.
  ipc::Welcome welcome() const;
  ipc::Device device() const;

  // ---- for `verbena ps` and `agent status` ----
  std::vector<std::uint16_t> ranges_of(ClientId client) const;
  std::vector<std::pair<ClientId, ipc::ConnectionInfo>> connections() const;
  std::vector<ipc::NamedCount> counters() const;
  std::size_t ids() const;
  std::size_t endpoints() const { return rdmacm_.endpoints(); }
  // No program, no range resting, no goodbye under way: the agent may go.
  bool idle() const;

 private:
  struct Client {
    std::uint32_t pid = 0;
    std::vector<std::uint16_t> ranges{};
    std::vector<std::uint16_t> old_ranges{};  // of an agent before this one
    // Ids by the index of the names that the program gave them, also those that are gone; and why
    // there is none of that name.
    std::vector<rdmacm::IdHandle> named{};
    std::map<rdmacm::IdHandle, Error> unmade{};
  };
  struct LeaseRequest {
    ClientId client = 0;
    std::uint64_t request = 0;
  };
  struct RestingRange {
    Time until{};
    std::uint16_t range = 0;
    ClientId owner = 0;  // counts among its ranges, if it still lives
  };
  // The interfaces on which a range's sockets are to be members of a group.
  using GroupOfRange = std::pair<std::uint16_t, Gid>;
  struct Interfaces {
    bool all = false;
    std::set<std::uint32_t> named{};
    bool empty() const { return !all && named.empty(); }
    bool set(std::uint32_t interface, bool wanted);
  };
  struct JoinRequest {
    ClientId client = 0;
    std::uint64_t request = 0;
    GroupOfRange what{};
    std::uint32_t interface = 0;
  };

  void deliver(const link::Arrival& arrival, std::span<const std::byte> mad, Time now);
  void run(Time now);
  void act(rdmacm::Event event);
  void act(const rdmacm::RouteQuery& query);
  Result<rdmacm::IdHandle> find_named(ClientId client, rdmacm::IdHandle name) const;
  rdmacm::IdHandle name_of(rdmacm::IdHandle id) const;
  Result<rdmacm::IdHandle> create_id(ClientId client, const ipc::CreateId& m, Time now);
  void tell(ClientId client, ipc::Bytes message, std::optional<std::uint16_t> sockets = {});
  void tell_device();
  Result<void> want_lease(const LeaseRequest& asked);
  void retry_leases();
  bool has_leased(ClientId client, Qpn qpn) const;
  bool has_range(ClientId client, std::uint16_t range) const;
  std::vector<std::uint16_t> old_ranges() const;
  std::size_t groups_of(ClientId client) const;
  void show_membership(const GroupOfRange& what, std::uint64_t token = 0);
  void unwant_group(const GroupOfRange& what, std::uint32_t interface);
  void leave_groups(std::uint16_t range);

  template <class Message>
  Result<bool> carry_out(ClientId client, std::uint64_t request, const Message& message, Time now);
  template <class Message>
  Result<void> serve(ClientId client, const ipc::Envelope& envelope, Time now);
  Result<void> handle(ClientId client, const ipc::Envelope& envelope, Time now);
  // Each answers itself, or its result is the answer.
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Lease& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::CreateId& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::DestroyId& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Bind& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::ResolveAddress& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Listen& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Connect& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Accept& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Reject& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Establish& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Disconnect& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Notify& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::SetOption& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::ReturnRange& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::HandOver& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::JoinGroup& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::LeaveGroup& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::LoadPath& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::AnswerPath& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Migrated& m, Time now);
  // "port 7000 is in use, by PID 17": why an id cannot be bound to the address, or, without one,
  // cannot listen on its own.  Empty if nobody is known to be in the way.
  std::string holder_of_port(ClientId client, rdmacm::IdHandle name,
                             const rdmacm::SocketAddress* wanted) const;

  Config config_;
  GeneralServices qp1_;
  mad::Dispatcher mads_;
  rdmacm::Manager rdmacm_;
  GidTable gids_;
  std::optional<std::string> why_down_{"the agent has not opened its port yet"};

  std::map<ClientId, Client> clients_;
  ClientId next_client_ = 1;
  std::map<std::uint64_t, LeaseRequest> lease_requests_;  // by token
  std::uint64_t next_token_ = 1;
  std::uint64_t leases_over_client_limit_ = 0;
  std::uint64_t leases_over_limit_ = 0;
  std::uint64_t leases_held_ = 0;
  std::map<GroupOfRange, Interfaces> groups_;
  std::map<std::uint64_t, JoinRequest> join_requests_;  // by token
  std::uint64_t joins_over_limit_ = 0;
  std::uint64_t joins_over_hosts_limit_ = 0;
  std::deque<RestingRange> resting_;         // by the end of their rest
  std::deque<LeaseRequest> leases_waiting_;  // for a range to have rested, in order of request
  std::deque<Output> outputs_;
};

}  // namespace verbena::node
