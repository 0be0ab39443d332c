#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/operation.h"
#include "base/random.h"
#include "base/time.h"
#include "hca/engine.h"
#include "ipc/messages.h"
#include "ipc/subnet_messages.h"
#include "process/agent_requests.h"
#include "process/connection.h"
#include "process/connections.h"
#include "process/group_joins.h"
#include "process/lane_manager.h"
#include "process/memberships.h"
#include "process/qp_leases.h"
#include "process/status_table.h"
#include "rdmacm/types.h"

namespace verbena::process {

// The program gets these notices, in order.
struct CqNotice {
  std::uint64_t cookie = 0;
};
struct AsyncNotice {
  std::uint32_t type = 0;  // enum ibv_event_type
  std::uint64_t cookie = 0;
  PortId port{};  // set if the event concerns a port
};
struct CmNotice {
  ConnectionHandle id{};
  std::uint64_t cookie = 0;     // the cookie of `id`
  ConnectionHandle new_id{};    // the new id of a CONNECT_REQUEST
  bool unanswered = false;      // CONNECT_REQUEST created `id`, and the program has not accepted it
  std::string why{};            // the agent's text, if it has refused the request
  std::uint64_t group = 0;      // MULTICAST_JOIN, MULTICAST_ERROR: the cookie of join_multicast()
  std::uint8_t group_rate = 0;  // MULTICAST_JOIN on InfiniBand: enum ibv_rate
  std::uint64_t arg = 0;        // the argument of an event that the program has written itself
  rdmacm::Event event{};
};
using Notice = std::variant<CqNotice, AsyncNotice, CmNotice>;

// Holds one program's half of the stack: its engine, the QPN ranges it has leased, and its side of
// the RDMA CM ids.  The other half is node::Node; they exchange ipc messages.
//
// Pure: the owner passes in packets, messages and time, and pulls packets, messages and notices.
// The layer client runs it with real sockets, and the layer fabric with simulated sockets.
//
// A command is an asynchronous request.  It is done at once, or is Pending until the agent has
// answered.  The completion of a Pending command runs inside on_message(), on_message_refused() or
// on_agent_died().  QPs, CQs and MRs are created, changed and destroyed without the agent.  The
// exception is a QP for which no number is free, such as the first one: it waits for the lease of a
// range.
//
// The usual calls of a connection do not wait for the agent either: create an id, resolve an
// address without a given source, connect, accept, reject, disconnect.  This class refuses wrong
// calls itself.  Failures that only the agent can see, such as a limit of the host, come as the
// event of that step.
//
// If the agent dies, the program joins the next agent with hello().  To the program this looks like
// an adapter that was unplugged and plugged in again.
//   * Until then, commands for the agent fail with kDeviceFatal.
//   * Old QPs remain in the error state.  They can be queried and destroyed, and no new QP gets
//     their numbers.  Old ids can be destroyed, but requests about them fail with kDeviceFatal.
//   * PDs, MRs, CQs and address handles belong to the program and do not change.
//   * New QPs lease new ranges, and new ids are created with the new agent.
//   * The new agent disconnects the peers of old connections.
//
// Its parts are the requests to the agent (AgentRequests), the numbers of QPs (QpLeases), the ids
// (Connections), the multicast groups (Memberships and GroupJoins), the lanes (LaneManager) and the
// rows of `verbena ps` (StatusTable).  Process itself has the calls that need several parts.
// process.cc implements the calls about the agent and QPs, and ids.cc those about ids and their
// events.  connect.cc, paths.cc, services.cc and groups.cc implement the other calls about ids.
//
// Only one thread at a time may call this class (under the owner's lock).  Direct calls of the
// engine are the exception.
class Process {
 public:
  // Limits the unsent messages for an agent that does not read.  At this limit, most requests
  // about ids fail with kNoResources, but destroy_id() does not.
  static constexpr std::size_t kUnreadMax = std::size_t{4} * rdmacm::kIdsPerOwnerMax;

  struct Config {
    hca::Limits limits{};
    hca::Personality personality{};
    std::string build{};
    std::uint32_t pid = 0;
    std::uint64_t capture = 0;  // the capture that the program belongs to; 0: none
    std::uint32_t ids_max = rdmacm::kIdsPerOwnerMax;
    bool lanes = false;  // use lanes to programs of this host
  };

  using ToAgent = AgentRequests::Outgoing;

  Process(const Config& config, Random random);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Sets the memory for the rows of `verbena ps`.  REQUIRES: there is no QP yet; the memory
  // outlives this object.
  void set_qp_table(std::span<std::byte> memory) { table_.set_memory(memory); }

  hca::Engine& engine() { return engine_; }
  const hca::Engine& engine() const { return engine_; }

  // ---- the agent ----
  // Sends Hello, the first message of a new connection.  REQUIRES: not connected().
  Started<ipc::Welcome> hello(Completion<ipc::Welcome> done);
  // Handles a message of the agent.  After an error (the message is malformed), treat the agent as
  // dead.  `has_descriptors` is true if the message came with its descriptors.  If a range comes
  // without its sockets, this function returns the range to the agent, and the request for the
  // range fails with kSystem, EMFILE.
  Result<void> on_message(std::span<const std::byte> message, Time now,
                          bool has_descriptors = true);
  std::optional<ToAgent> poll_message() { return requests_.poll(); }
  // Returns the number of unsent messages.
  std::size_t messages() const { return requests_.unsent(); }
  // Returns true if all messages may wait a moment, so that the owner can send several together.
  // These messages expect no reply.  If the program dies before it sends them, the agent ends its
  // connections.
  bool messages_may_wait() const { return requests_.may_wait(); }
  // Appends the next message to `message` and returns true, if one datagram may carry both.
  bool poll_another(ToAgent& message) { return requests_.poll_another(message); }
  // Reports that the kernel refused the descriptors of the message (ETOOMANYREFS): its request
  // fails with kSystem, EMFILE.
  Result<void> on_message_refused(const ToAgent& message);
  // Fails all pending requests with kDeviceFatal and moves all QPs to the error state.  The notices
  // include one device-fatal event, and one DEVICE_REMOVAL for each id of this agent.  If this
  // function throws std::bad_alloc, call it again.
  void on_agent_died(Time now);
  bool connected() const { return !devices_.empty(); }
  // Returns the devices as the agent last described them; none without an agent.  No device or port
  // disappears while the agent lives.
  const std::vector<ipc::Device>& devices() const { return devices_; }
  // Returns the UDP port by which programs of this host are reached (ipc::Reach).
  std::uint16_t udp_port() const {
    return devices_.empty() ? wire::kRoceUdpPort : devices_.front().ports.front().reach.udp_port;
  }
  // Returns null if there is no such port, or no agent.
  const ipc::Port* find_port(PortId port) const { return ipc::find_port(devices_, port); }
  // Returns true as soon as a QP of this program may get packets from other hosts.
  bool may_hear_other_hosts() const { return may_hear_other_hosts_; }
  // Returns the QPN ranges that the program has leased from this agent.  A range is the upper 12
  // bits of its QPNs.  The list is empty before the first QP.
  std::span<const std::uint16_t> ranges() const { return leases_.numbers().ranges(); }
  // Returns the text of the agent's last refusal, for an Error that is from_agent.
  const std::string& last_refusal_text() const { return requests_.last_refusal_text(); }

  // ---- commands ----
  Started<hca::QpHandle> create_qp(const hca::QpInit& init, Time now,
                                   Completion<hca::QpHandle> done) {
    return leases_.create_qp(init, now, table_.has_memory(), std::move(done));
  }
  Result<void> modify_qp(hca::QpHandle qp, const hca::QpAttributes& attributes, std::uint32_t mask,
                         Time now);
  Result<void> destroy_qp(hca::QpHandle qp, Time now);
  // Attaches the QP as hca::Engine::attach_multicast() does.  The sockets of its range become
  // members of the group on one interface of the host.  If `interface` is 0, they become members on
  // all interfaces, including later ones.  On InfiniBand, `interface` is the number of a port.
  Started<ipc::Done> attach_multicast(hca::QpHandle qp, const Gid& group, std::uint32_t interface,
                                      Completion<ipc::Done> done);
  // Detaches the QP on all interfaces.  Tells the agent without waiting for its reply.
  Result<void> detach_multicast(hca::QpHandle qp, const Gid& group) {
    return memberships_.detach(qp, group);
  }
  // Joins a group with an id that is bound to a device.  If `receives` is true and the id has a QP,
  // the QP is attached on the id's interface.  MULTICAST_JOIN carries the destination for
  // datagrams.  A failure raises MULTICAST_ERROR.  Events carry `cookie`, which must not be 0 or
  // the cookie of another group of the id.
  //
  // On InfiniBand the group may be an MGID (`by_gid`), or a wildcard, for which the subnet chooses
  // an MGID.  On InfiniBand, MULTICAST_ERROR may also follow MULTICAST_JOIN.  It then reports that
  // the group has ended or its parameters have changed, and that the id has left the group.
  Result<void> join_multicast(ConnectionHandle id, const rdmacm::SocketAddress& group,
                              bool receives, std::uint64_t cookie);
  // Leaves at once.  No event of the join follows.  Fails with kAddressNotFound if the join has
  // failed or the group has ended, whether or not the program has read the MULTICAST_ERROR.
  Result<void> leave_multicast(ConnectionHandle id, std::uint64_t cookie);
  // Returns the path of an address handle or QP: from the port `to.port` to the destination of
  // `to`.  If there is a GRH, as always on Ethernet, the source is the GID with index `sgid_index`.
  // On InfiniBand, the source LID of `to` holds only the path bits.  A hop limit of 0 stands for
  // the default.
  Result<hca::Path> path(std::uint32_t sgid_index, link::Address to) const;

  // Creates the id at once.  The agent learns of the id with the first request about it.
  Result<ConnectionHandle> create_id(std::uint32_t port_space, std::uint32_t qp_type,
                                     std::uint64_t cookie);
  // Destroys the id at once; waits neither for the peer nor for the agent.
  Result<void> destroy_id(ConnectionHandle id);
  // Records which step the program has begun, for diagnostics.
  void record_step(ConnectionHandle id, Connection::Step step, Time now);
  Result<void> set_cookie(ConnectionHandle id, std::uint64_t cookie);
  Started<ipc::Bound> bind(ConnectionHandle id, const rdmacm::SocketAddress& address,
                           Completion<ipc::Bound> done);
  Started<ipc::Done> resolve_address(ConnectionHandle id, const rdmacm::SocketAddress& source,
                                     const rdmacm::SocketAddress& destination, Duration timeout,
                                     Completion<ipc::Done> done);
  // Resolves the route.  The event follows at once if the address is resolved, because the route
  // came with the address.  For an id that has found services, the agent looks for a route to the
  // first service, for at most `timeout`.
  Started<ipc::Done> resolve_route(ConnectionHandle id, Duration timeout,
                                   Completion<ipc::Done> done);
  // Gives the id this InfiniBand path instead of the path that the agent has found.  The address of
  // the id must be resolved.  ROUTE_RESOLVED follows.  The port and the GID index of the id
  // replace those of `path`.
  Started<ipc::Done> set_path(ConnectionHandle id, const rdmacm::PathInfo& path,
                              Completion<ipc::Done> done);
  struct ServiceFilter {
    std::optional<ipc::ServiceName> name{};
    std::optional<ServiceId> service_id{};
    Duration timeout{};
  };
  // Asks the subnet administration of the id's port for services.  ADDRINFO_RESOLVED or
  // ADDRINFO_ERROR follows; after a success connection() has the services.  Fails with kBadState if
  // the id is not bound to a port, has begun to resolve an address, is looking up services, or has
  // found services.  Fails with kNotSupported if the port is not an InfiniBand port.
  Started<ipc::Done> find_services_for(ConnectionHandle id, const ServiceFilter& filter);
  // Asks for services without an id.
  Started<ipc::ServicesFound> find_services(PortId port, const ServiceFilter& filter,
                                            Completion<ipc::ServicesFound> done);
  // The next two functions register a service with the subnet administration, and end the
  // registration.
  Started<ipc::ServiceAdded> add_service(PortId port, const ipc::Service& service,
                                         Completion<ipc::ServiceAdded> done);
  Started<ipc::Done> remove_service(std::uint64_t registration, Completion<ipc::Done> done);
  // Listens with the id.  Binds the id, if it is not bound yet, to the IPv4 wildcard and a port
  // that the agent chooses.  `filter` is for ids without a port space.
  Started<ipc::Bound> listen(ConnectionHandle id, int backlog, const rdmacm::Filter& filter,
                             Completion<ipc::Bound> done);
  Started<ipc::Bound> listen(ConnectionHandle id, int backlog, Completion<ipc::Bound> done) {
    return listen(id, backlog, {}, std::move(done));
  }
  Started<ipc::Done> connect(ConnectionHandle id, const rdmacm::ConnParam& param,
                             Completion<ipc::Done> done);
  Started<ipc::Done> accept(ConnectionHandle id, const rdmacm::ConnParam& param, Time now,
                            Completion<ipc::Done> done);
  Started<ipc::Done> reject(ConnectionHandle id, const rdmacm::Refusal& refusal,
                            Completion<ipc::Done> done);
  Started<ipc::Done> establish(ConnectionHandle id, std::span<const std::byte> private_data,
                               Time now, Completion<ipc::Done> done);
  Started<ipc::Done> disconnect(ConnectionHandle id, std::span<const std::byte> private_data,
                                Time now, Completion<ipc::Done> done);
  Started<ipc::Done> disconnect(ConnectionHandle id, Time now, Completion<ipc::Done> done) {
    return disconnect(id, {}, now, std::move(done));
  }
  // The next two functions offer the peer an alternate path, and answer the peer's offer, for ids
  // without a port space.  The QP of the id loads the path when both sides have agreed.
  Started<ipc::Done> load_path(ConnectionHandle id, const rdmacm::PathInfo& path,
                               std::span<const std::byte> private_data, Completion<ipc::Done> done);
  Started<ipc::Done> answer_path(ConnectionHandle id, const rdmacm::PathAnswer& answer, Time now,
                                 Completion<ipc::Done> done);
  // Handles the program's report that it has seen COMM_EST (rdma_notify).
  Result<void> notify(ConnectionHandle id);
  Started<ipc::Done> set_option(ConnectionHandle id, std::uint32_t level, std::uint32_t option,
                                std::uint64_t value, Completion<ipc::Done> done);
  Started<ipc::Done> flush_capture(Completion<ipc::Done> done);

  // Gives the id a QP, or removes its QP if `qp` is empty.  A QP in RESET or INIT goes to INIT, and
  // a datagram QP goes on to RTS.  If another id has the QP, that id loses the QP.
  Result<void> set_qp(ConnectionHandle id, hca::QpHandle qp, Time now);
  // Holds the attributes with which the QP of an id moves to a state.  A program that has created
  // its QP itself also applies the attributes itself.
  struct Transition {
    hca::QpAttributes attributes{};
    std::uint32_t mask = 0;
  };
  // Returns the attributes for the state `to`.  Fails with kBadState if they need values of the
  // peer that are not known yet.
  Result<Transition> transition(ConnectionHandle id, hca::QpState to) const;
  Result<const Connection*> connection(ConnectionHandle id) const;
  // Returns the time of the last update of the table for `verbena ps`.  The owner updates its own
  // counters at the same time.
  Time status_updated_at() const { return table_.updated(); }
  // Call this when the owner's counters have changed.  The table is then updated soon.
  void mark_status_outdated() { table_.mark_outdated(); }
  // Updates the table at once, for example before the program ends.
  void update_status_now(Time now) {
    if (table_.has_memory()) table_.update(engine_, counts(), now);
  }

  // Lets other programs of the user access this program's memory directly, with the rights in the
  // table.  `direct` has the data that they need for the access.  REQUIRES: there are no lanes yet,
  // and the table outlives this object.
  void publish(link::AccessTable& table, const ipc::DirectAccess& direct) {
    lanes_.publish(table);
    leases_.set_direct_access(direct);
  }

  // ---- packets and time ----
  void receive(const link::Arrival& arrival, Time now);
  // Receives packets that wait in lanes.  Returns true if there were packets.
  bool receive_lanes(Time now);
  // Returns the lanes.  The owner maps their memory and wakes the programs at their other ends.
  LaneManager& lanes() { return lanes_; }
  // Adds packets to the burst and to lanes.  Then the caller must send the burst, which may be
  // empty.  Returns true if the caller must call again after that.
  bool transmit(link::Burst& burst, Time now);
  // Makes completions and notices available, as transmit() does, but sends no packets.
  void deliver(Time now);
  void on_timer(Time now);
  Time deadline() const;
  std::optional<Notice> poll_notice();

 private:
  // Sends the agent a request about an id.  Fails as find_with_agent() does.
  template <class Reply, class Message>
  Started<Reply> ask_about(ConnectionHandle id, Message message, Completion<Reply> done);
  // Sends the request without waiting for a reply, and moves the id to `next_stage`.  If the agent
  // refuses the request, an event follows.
  template <class Message>
  Started<ipc::Done> send_without_reply(Connection& connection, Connection::Stage next_stage,
                                        Message message);
  Result<Connection*> find(ConnectionHandle id) const;
  // Finds an id about which a request can be sent.  Fails if the handle is stale, if the agent of
  // the id is dead, or if kUnreadMax messages wait.
  Result<Connection*> find_with_agent(ConnectionHandle id);
  // Asks the agent to create the id, unless an earlier request for this was sent and not refused.
  void create_in_agent(Connection& connection);
  // Wraps `done`, so that it also clears `unanswered` of the id if the agent has agreed.
  Completion<ipc::Done> mark_answered(ConnectionHandle id, Completion<ipc::Done> done);
  static void set_source(Connection& connection, const ipc::Bound& bound);
  // Wraps `done`, so that it also moves the id to `stage` if the agent has agreed.  The id does not
  // move if another request has moved it meanwhile.
  Completion<ipc::Done> set_stage_on_success(ConnectionHandle id, Connection::Stage stage,
                                             Completion<ipc::Done> done) const;
  Result<void> check_depths(const Connection& connection, const rdmacm::ConnParam& param) const;
  Result<void> check_qp(Qpn qpn) const;
  Result<void> move_qp(hca::QpHandle qp, const hca::QpAttributes& attributes, std::uint32_t mask,
                       Time now);
  void hand_over();
  std::vector<std::uint16_t> ranges_in_use() const;
  Result<void> on_reply(const ipc::Envelope& envelope, bool has_descriptors);
  Result<void> on_devices(std::vector<ipc::Device> devices);
  void report_port_changes(PortId port, const ipc::Port& old_port, const ipc::Port& new_port);
  bool is_of_this_host(const Gid& gid) const;
  Result<hca::Path> path_of(const rdmacm::PathInfo& from) const;
  std::uint16_t pkey_index_of(const rdmacm::PathInfo& path) const;
  Result<void> check_alive(hca::QpHandle qp) const;
  void drain_engine(Time now);
  void on_qp_event(const hca::QpEvent& event);
  StatusTable::Counts counts() const;
  void move_all_to_error(Time now);
  void on_event(const rdmacm::Event& event, Time now, std::string why = {});
  void on_refused(const ipc::Refused& refused, Time now);
  void on_request_event(const rdmacm::Event& event);
  Result<void> connect_qp(ConnectionHandle id, Time now);
  void establish_id(Connection& connection, CmNotice& notice, Time now);
  // Holds an alternate path that alternate_path() has completed, and the attributes that load it
  // into a QP.
  struct AlternatePath {
    rdmacm::PathInfo path{};
    hca::QpAttributes attributes{};
  };
  Result<AlternatePath> alternate_path(const Connection& connection, rdmacm::PathInfo path) const;
  Result<void> load(Connection& connection, const AlternatePath& alternate, Time now);
  void on_path_answered(Connection& connection, CmNotice& notice, Time now);
  std::optional<AlternatePath> acceptable_alternate(const Connection& connection) const;
  void load_accepted_alternate(Connection& connection, Time now);
  void on_migrated(Qpn qpn);
  bool is_on_subnet(const Connection& connection) const;
  void report_route(ConnectionHandle id, Connection& connection);
  static ipc::FindServices message_of(PortId port, const ServiceFilter& filter);
  void on_services(ConnectionHandle id, Result<ipc::ServicesFound> reply);
  Started<ipc::Done> resolve_service(ConnectionHandle id, Duration timeout,
                                     Completion<ipc::Done> done);
  static void report_address_as_route(Connection& connection, CmNotice& notice);
  Result<void> join_on_subnet(ConnectionHandle id, const rdmacm::SocketAddress& group,
                              bool receives, std::uint64_t cookie);
  Result<void> on_joined(ConnectionHandle id, std::uint64_t cookie,
                         const ipc::MulticastJoined& reply);
  void on_multicast_lost(const ipc::MulticastLost& message);
  Result<void> apply_qkey(Connection& connection, Qkey qkey);
  Result<Qkey> qkey_of(const Connection& connection) const;
  void attach_or_report(ConnectionHandle id, std::uint64_t cookie, const Gid& group,
                        std::uint32_t interface);
  void report_join(ConnectionHandle id, std::uint64_t cookie, const Result<ipc::Done>& result);
  void leave(Connection::Group& group);
  Result<void> prepare_qp(ConnectionHandle id, const hca::Engine::QpInfo& info, Time now);
  Result<void> move_to_error(Connection& connection, Time now);

  // The members that hold a Pending come after requests_, because they must be destroyed before it.
  Config config_;
  AgentRequests requests_{};
  QpLeases leases_;
  hca::Engine engine_;
  Memberships memberships_;
  GroupJoins group_joins_;
  LaneManager lanes_;
  std::vector<ipc::Device> devices_{};  // empty without an agent
  bool may_hear_other_hosts_ = false;
  // Holds the connections of dead agents that the next agent has to disconnect.  An agent that dies
  // adds at most ids_max of them.
  std::vector<rdmacm::PendingDisconnect> pending_disconnects_{};
  Pending hand_over_request_{};
  Connections connections_;
  std::deque<Notice> notices_{};
  StatusTable table_{};
  std::uint64_t messages_refused_ = 0;
  Time message_time_{};  // when the last message of the agent arrived
};

}  // namespace verbena::process
