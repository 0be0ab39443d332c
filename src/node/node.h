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
#include "ipc/counters.h"
#include "ipc/lane_messages.h"
#include "ipc/messages.h"
#include "ipc/sa_messages.h"
#include "ipc/subnet_messages.h"
#include "ipc/tool_messages.h"
#include "link/burst.h"
#include "link/framing.h"
#include "mad/dispatcher.h"
#include "node/general_services.h"
#include "node/gid_table.h"
#include "node/infiniband_port.h"
#include "node/lane_table.h"
#include "node/port_table.h"
#include "node/subnet_services.h"
#include "rdmacm/manager.h"

namespace verbena::node {

// Describes the kernel's route to a destination.
struct HostRoute {
  Gid source{};  // an address of this host, which decides the port
  std::uint32_t interface = 0;
  std::uint32_t mtu_bytes = 0;
  bool loopback = false;
};

// Owns everything that the programs of one host share: QP1 and its connection managers, the tables
// of its devices and ports, the QPN ranges and the ids of all programs.  It does what the kernel
// does for a hardware adapter.
//
// Pure: the owner passes in packets, messages and time; poll() and transmit() return the results.
// The agent runs it with real sockets, and a simulation with simulated sockets.  One thread owns
// it.
//
// A MAD becomes an event without a change of thread: receive() takes the MAD from QP1's completion
// queue, matches it and runs the state machines.  When receive() returns, poll() returns the
// message for the program.
//
// Spec: vol1 13.5 (QP1), 12 (CM), annex A11 (RDMA IP CM), annex A17 (RoCEv2).
class Node {
 public:
  struct Config {
    // Identifies this host to its peers' connection managers.
    Guid node_guid{};
    // Lists the host's devices.  If the list is empty, the host has one device: verbena0, with the
    // GUID of the host and one Ethernet port.
    std::vector<DeviceConfig> devices{};
    // Limits the QPN ranges of a program.  The default suffices for all QPs of one engine.
    std::uint32_t leases_per_client_max = hca::Limits{}.qps / ipc::kLeaseQpns;
    std::string build{};
    std::uint32_t pid = 0;
    // Limits the multicast groups that a program's sockets may be members of.  The default is the
    // limit of an engine.
    std::uint32_t groups_per_client_max = hca::Limits{}.groups;
    // A range that was returned, or whose program has died, is quiescent for this time before
    // another program gets it.  If there is no other free range, or the program has reached its
    // limit, a lease waits for a quiescing range.
    Duration range_quiesce_time = std::chrono::seconds(1);
    // Users other than 0 may not bind lower port numbers, as with TCP (ip(7),
    // ip_unprivileged_port_start).
    std::uint16_t unprivileged_port_start = 0;
    // Limits the QPN ranges that all programs of one user have together.  `own_user` has no limit.
    std::uint32_t leases_per_user_max = 256;
    // Limits the RDMA CM ids that all programs of one user have together.  `own_user` has no limit.
    std::uint32_t ids_per_user_max = rdmacm::kIdsPerOwnerMax;
    std::uint32_t own_user = 0;  // the user that the agent runs as
    sa::Client::Config sa{};     // for the SA clients of InfiniBand ports
    bool trace = false;          // true: poll() also returns StateChanged
  };

  // Carries a message for a program.  If `sockets` names a range, the owner sends the data sockets
  // of the range with the message.  If `lane` names a lane, the owner sends the memory of the lane,
  // and the descriptors that wake this program and `peer`.
  struct ToClient {
    ClientId client = 0;
    ipc::Bytes message{};
    std::optional<std::uint16_t> sockets{};
    std::optional<LaneId> lane{};
    ClientId peer = 0;
  };
  // Asks for a free QPN range.  The owner answers LeaseRequest with on_lease(),
  // LaneMemoryRequest with on_lane_memory(), RouteRequest with on_route(), and a Membership with a
  // token with on_membership().
  struct LeaseRequest {
    std::uint64_t token = 0;
    ClientId client = 0;
    // The owner must not lease these ranges: QPs that were made under an earlier agent still use
    // them.
    std::vector<std::uint16_t> avoid{};
    bool sockets = true;  // false: the range needs no data sockets
  };
  // Asks for the memory of a lane between two programs.
  struct LaneMemoryRequest {
    LaneId lane = 0;
  };
  // Reports that the owner may release its copy of the lane's memory: the node has output the
  // messages that carry it to both programs, or no program needs it.
  struct LaneHandedOver {
    LaneId lane = 0;
  };
  // Membership::range has this value if the node itself joins or leaves.
  static constexpr std::uint16_t kOwnRange = 0;
  // Asks for the kernel's route to a destination.
  struct RouteRequest {
    std::uint64_t token = 0;
    ClientId client = 0;  // the program that needs the route
    Gid destination{};
    std::optional<Gid> source{};
    std::uint32_t scope = 0;
  };
  // Asks that the range's sockets become members of the group on exactly these interfaces.  On
  // InfiniBand, interfaces are ports.
  struct Membership {
    std::uint64_t token = 0;  // 0: the node needs no answer
    std::uint16_t range = 0;
    Gid group{};
    std::vector<std::uint32_t> interfaces{};
  };
  // Reports that the range has been quiescent long enough: its sockets may be drained and used
  // again.
  struct RangeReleased {
    std::uint16_t range = 0;
  };
  // Reports to the log that a connection has changed its state.
  using StateChanged = cm::StateChanged;
  using Output = std::variant<ToClient, LeaseRequest, LaneMemoryRequest, LaneHandedOver,
                              RouteRequest, Membership, RangeReleased, StateChanged>;

  Node(const Config& config, Random random);

  // Sets the host's addresses, at the beginning and after each change.  An address keeps its index
  // in the GID table of its port (see GidTable).
  void on_addresses(const std::vector<HostAddress>& addresses, Time now);
  // Sets the state of UDP port 4791.  `down_reason` is the reason why all ports of the host are
  // down, for example that another process uses UDP port 4791.  It is empty if UDP port 4791 is
  // open. `reach` describes which peers the host's programs can reach.
  void set_port(std::optional<std::string> down_reason, Time now, const ipc::Reach& reach = {});
  // Sets the state of one port.  Fails like PortTable::set_state().
  Result<void> set_port_state(PortId port, const PortState& state, Time now);

  // Describes a program.  Messages to other programs mention `pid`; 0: unknown.
  struct Program {
    std::uint32_t pid = 0;
    std::uint32_t user = 0;
    bool lanes = false;  // the program uses lanes
  };
  // Adds a program that has sent Hello.
  ClientId add_program(Time now, const Program& program);
  ClientId add_program(Time now) { return add_program(now, {}); }
  // Removes a program that has died, has closed the connection, or has called exec().
  void remove_program(ClientId client, Time now);
  // Sends some of the pending disconnects now instead of later, because the agent ends.  Returns
  // false if there are no more.
  bool flush_disconnects(Time now);
  // Handles a request of a program.  REQUIRES: ipc::is_for_node() is true for the request.
  void on_message(ClientId client, std::span<const std::byte> message, Time now);
  void on_lease(std::uint64_t token, const Result<std::uint16_t>& range, Time now);
  void on_lane_memory(LaneId lane, const Result<void>& result);
  void on_route(std::uint64_t token, const Result<HostRoute>& route, Time now);
  void on_membership(std::uint64_t token, const Result<void>& result);

  void receive(const link::Arrival& arrival, Time now);
  void on_timer(Time now);
  Time deadline() const;

  std::optional<Output> poll();
  // Appends packets of QP1 to `burst`.  Returns true if more remain.
  bool transmit(link::Burst& burst, Time now);

  // Returns the reply to a program's Hello.
  ipc::Welcome welcome() const;
  std::vector<ipc::Device> devices() const { return ports_.devices(); }

  // ---- for `verbena ps`, `verbena sa` and `agent status` ----
  std::vector<std::uint16_t> ranges_of(ClientId client) const;
  std::vector<std::pair<ClientId, ipc::ConnectionInfo>> connections() const;
  std::vector<ipc::NamedCount> counters() const;
  std::size_t ids() const;
  std::size_t endpoints() const { return rdmacm_.endpoints(); }
  // Returns a page of the paths, groups, addresses or counters of the InfiniBand ports.  Fails with
  // kNotSupported if the host has no InfiniBand port.
  Result<ipc::SaReply> show_sa(const ipc::ShowSa& request, Time now) const;
  // Removes all cached paths and addresses of the InfiniBand ports, and returns how many it
  // removed.  Keeps memberships and pending queries.  Fails with kNotSupported if the host has no
  // InfiniBand port.
  Result<ipc::SaFlushed> flush_sa(Time now);
  // Returns true if there is no program, no quiescing range and no pending disconnect: the agent
  // may exit.
  bool is_idle() const;

 private:
  struct Client {
    Program program{};
    ipc::DirectAccess direct{};
    std::vector<std::uint16_t> ranges{};
    std::vector<std::uint16_t> old_ranges{};  // ranges leased from an earlier agent
    // Holds the ids that the program has created, by the index in the names that the program has
    // given them (ipc::kNameBit).  Destroyed ids remain in the list.
    std::vector<rdmacm::IdHandle> ids_by_index{};
    // Holds the names of ids that could not be created, with the reasons.
    std::map<rdmacm::IdHandle, Error> failed_ids{};
  };
  struct PendingLease {
    ClientId client = 0;
    std::uint64_t request = 0;
    bool sockets = true;
  };
  struct QuiescingRange {
    Time until{};
    std::uint16_t range = 0;
    ClientId owner = 0;  // the range counts towards the limit of this program
  };
  // Names a range and a group of which the range's sockets are members.
  using GroupOfRange = std::pair<std::uint16_t, Gid>;
  // Lists the interfaces on which a range's sockets are to be members of a group.
  struct Interfaces {
    bool all_interfaces = false;
    std::set<std::uint32_t> indexes{};
    bool empty() const { return !all_interfaces && indexes.empty(); }
    // Adds or removes an interface; 0 means all interfaces.  Returns true if this changed the
    // list.
    bool set(std::uint32_t interface, bool is_member);
  };
  struct JoinRequest {
    ClientId client = 0;
    std::uint64_t request = 0;
    GroupOfRange group_of_range{};
    std::uint32_t interface = 0;
    bool is_new = true;  // false: an earlier join of the range has made it a member already
  };

  void deliver(const link::Arrival& arrival, std::span<const std::byte> mad, Time now);
  void run(Time now);
  void carry_out(rdmacm::Event event);
  void carry_out(const rdmacm::RouteQuery& query);
  void find_route(const rdmacm::RouteQuery& query, Time now);
  void run_infiniband(Time now);
  void carry_out(PortId port, InfinibandPort::Output output, Time now);
  void report_joined(const InfinibandPort::GroupJoined& joined);
  void leave_subnet_groups(ClientId client, Time now);
  void add_infiniband_counters(std::vector<ipc::NamedCount>& all) const;
  Result<rdmacm::IdHandle> find_named(ClientId client, rdmacm::IdHandle name) const;
  rdmacm::IdHandle name_of(rdmacm::IdHandle id) const;
  Result<rdmacm::IdHandle> create_id(ClientId client, const ipc::CreateId& m, Time now);
  void send_to(ClientId client, ipc::Bytes message, std::optional<std::uint16_t> sockets = {});
  void report_devices();
  void apply_ports(Time now);
  Result<void> request_lease(const PendingLease& lease);
  std::size_t count_ranges_of_user(std::uint32_t user) const;
  Result<void> check_port(ClientId client, std::uint16_t port) const;
  Result<void> check_port_of(ClientId client, const rdmacm::SocketAddress& address,
                             ServiceId mask = {~std::uint64_t{0}}) const;
  void retry_leases();
  bool has_leased(ClientId client, Qpn qpn) const;
  bool has_range(ClientId client, std::uint16_t range) const;
  std::vector<std::uint16_t> old_ranges() const;
  void add_all_interfaces(const Gid& group, std::set<std::uint32_t>& interfaces) const;
  std::size_t count_groups_of(ClientId client) const;
  void output_membership(const GroupOfRange& group_of_range, std::uint64_t token = 0);
  void drop_membership(const GroupOfRange& group_of_range, std::uint32_t interface);
  void leave_groups(std::uint16_t range);

  template <class Message>
  Result<bool> call_handler(ClientId client, std::uint64_t request, const Message& message,
                            Time now);
  template <class Message>
  Result<void> serve(ClientId client, const ipc::Envelope& envelope, Time now);
  Result<void> handle(ClientId client, const ipc::Envelope& envelope, Time now);
  // These functions handle requests.  They return true if the handler has sent the reply, or will
  // send it later.  If a function returns false, the caller replies with Done.  If it returns an
  // error, the caller replies with the error.  A request with the number 0 gets no Done.
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
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::SetPath& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::FindServices& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::AddService& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::RemoveService& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::ReturnRange& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::UnfinishedWork& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::JoinGroup& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::LeaveGroup& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::JoinMulticast& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::LeaveMulticast& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::LoadPath& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::AnswerPath& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::Migrated& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::AttachLane& m, Time now);
  Result<bool> on(ClientId client, std::uint64_t request, const ipc::CloseLane& m, Time now);
  Result<bool> reply_bound(ClientId client, std::uint64_t request, rdmacm::IdHandle id);
  void close_lanes(ClientId client);
  void report_lane_closed(LaneId lane, const LaneTable::Lane& closed, ClientId closing_client);
  void report_lane_range(ClientId owner, std::uint16_t range, bool is_leased);
  // Returns the reason why an id cannot be bound to `address`, or cannot listen on its own address
  // if `address` is null: for example "port 7000 is in use, by PID 17".  Returns an empty text if
  // the reason is unknown.
  std::string describe_port_conflict(ClientId client, rdmacm::IdHandle name,
                                     const rdmacm::SocketAddress* address) const;

  Config config_;
  GeneralServices qp1_;
  mad::Dispatcher mads_;
  rdmacm::Manager rdmacm_;
  PortTable ports_;
  std::map<PortId, InfinibandPort> infiniband_;
  SubnetServices services_{infiniband_};
  struct SubnetGroup {
    ClientId client = 0;
    PortId port{};
    std::uint64_t request = 0;  // the request to join, for the reply
  };
  std::map<std::uint64_t, SubnetGroup> subnet_groups_;  // by token, the number of the membership

  std::map<ClientId, Client> clients_;
  ClientId next_client_ = 1;
  std::map<std::uint64_t, PendingLease> lease_requests_;  // by token
  std::uint64_t next_token_ = 1;
  std::uint64_t leases_over_client_limit_ = 0;
  std::uint64_t leases_over_user_limit_ = 0;
  std::uint64_t leases_over_host_limit_ = 0;
  std::uint64_t leases_delayed_ = 0;  // leases that had to wait for a quiescing range
  LaneTable lanes_;
  std::map<GroupOfRange, Interfaces> groups_;
  std::map<std::uint64_t, JoinRequest> join_requests_;  // by token
  std::uint64_t joins_over_client_limit_ = 0;
  std::uint64_t joins_over_host_limit_ = 0;
  std::deque<QuiescingRange> quiescing_;     // in the order of QuiescingRange::until
  std::deque<PendingLease> leases_waiting_;  // wait for a quiescing range; the oldest is first
  std::deque<Output> outputs_;
};

}  // namespace verbena::node
