#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/random.h"
#include "base/time.h"
#include "cm/manager.h"
#include "mad/dispatcher.h"
#include "rdmacm/id.h"
#include "rdmacm/id_counts.h"
#include "rdmacm/ports.h"
#include "rdmacm/types.h"
#include "wire/rdma_ip_cm.h"

namespace verbena::rdmacm {

// Returns the service id of a port: 0x0000'0000'01PP'xxxx (annex A11.2), or 0x0000'0000'0002'xxxx
// for RDMA_PS_IPOIB.
constexpr ServiceId service_id(std::uint16_t port_space, std::uint16_t port) {
  return {std::uint64_t{port_space} << 16 | port};
}

struct Config {
  cm::Config cm{};
  std::uint32_t ids_max = 65536;
  std::uint32_t ids_per_owner_max = kIdsPerOwnerMax;  // so one program cannot take all ids
  std::uint32_t ids_per_user_max = kIdsPerOwnerMax;   // for users that set_user() names
  std::uint8_t loopback_packet_life{8};               // timeout code: 1 ms
  std::uint8_t network_packet_life{14};               // timeout code: 67 ms
  // This is a timeout code.  The default is 2.1 s, as on Linux: with 7 retries a connection
  // survives 15 s without network or with a stopped peer.  A lost packet costs less time, because
  // the requester probes much earlier.
  std::uint8_t ack_timeout_min{19};
  // Limits the outstanding READs and atomics of a QP, in each direction.
  std::uint8_t depth_max{16};
  Duration connect_timeout = std::chrono::seconds(30);
};

// Manages the RDMA CM ids of all programs of a host.  It implements librdmacm's calls, from
// rdma_create_id() to rdma_destroy_id(), with one cm::Manager.
//
//   idle -> bound -> listening
//     |       |
//     +-------+-> resolving -> resolved -> connecting -> responded --establish()--> connected
//                 (RouteQuery)
//   a listener's child:  requested -> accepting --RTU or first data--> connected
//
//   connected -> disconnecting -> disconnected
//   requested or responded --reject()--> failed
//   connecting, responded, requested or accepting --REJ--> failed
//   connecting or accepting --no answer--> failed
//
// Ids for datagrams go from connecting or requested straight to connected: SIDR resolves the QP of
// a service, and nothing is established (datagrams.cc).
//
// Spec: annex A11 (RDMA IP CM service).  Events and their order follow rdma_cm(7), with these
// differences:
//  * ADDR_RESOLVED has the whole path.  On Ethernet the traffic class is missing: it is the id's
//    TOS at the time of connect().  RoCE has no SA that knows routes, so the client library in the
//    program answers rdma_resolve_route() itself.
//  * In rdma_cm(7) only active ids without a QP get CONNECT_RESPONSE.  Here all active ids get it:
//    the client library changes the state of the QP, calls establish() and turns the event into
//    ESTABLISHED.
//  * DISCONNECTED comes once on each side, and the peer's DREQ is answered at once.
//  * The backlog is a limit: further requests are dropped, and the peer repeats them.
//
// Like cm::Manager, this class does no I/O: after each call, drain poll(), then ask for deadline().
// Calls check the owner: a call for another owner's id fails with kBadHandle, as for a forged id.
// A valid call in the wrong state fails with kBadState (librdmacm: EINVAL).
class Manager {
 public:
  // After bind(), requests wait for listen() for at most this time.
  static constexpr Duration kListenGrace = std::chrono::seconds(1);

  Manager(const Config& config, Random random);
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // ---- Programs
  // The owner chooses `name`, which name() returns.
  Result<IdHandle> create_id(Owner owner, std::uint16_t port_space, std::uint8_t qp_type, Time now,
                             std::uint64_t name = 0);
  // Destroys an id without waiting.  The peer gets REJ or DREQ.  The owner has to destroy children
  // whose events it has not read yet, as with librdmacm.
  Result<void> destroy_id(Owner owner, IdHandle id, Time now);
  // Binds an id to an address; port 0 selects a free port from 32768 to 60999.  kAddressNotFound:
  // the address is not one of this host.  kAddressInUse: the port is taken, maybe by a wildcard.
  // Until listen(), but for at most kListenGrace, requests are neither answered nor rejected,
  // because a program may tell its peers the port before it listens (qperf does).
  Result<void> bind(Owner owner, IdHandle id, const SocketAddress& address, Time now);
  // Emits a RouteQuery, later ADDR_RESOLVED or ADDR_ERROR.  `source` may be null.
  Result<void> resolve_addr(Owner owner, IdHandle id, const SocketAddress* source,
                            const SocketAddress& destination, Duration timeout, Time now);
  // Replaces the path of an id whose address is resolved (rdma_set_option(), RDMA_OPTION_IB_PATH).
  // kNotSupported: the id's port is not an InfiniBand port. kInvalidArgument: the path does not
  // begin at the GID of the id's port, or one of its numbers is out of range.
  Result<void> set_path(Owner owner, IdHandle id, const PathInfo& path);
  Result<void> listen(Owner owner, IdHandle id, std::uint32_t backlog);
  // For ids without a port space: listens for the service id to which the id is bound, at the id's
  // GID or at all GIDs of the host.
  Result<void> listen_for(Owner owner, IdHandle id, const Filter& filter, std::uint32_t backlog);
  Result<void> connect(Owner owner, IdHandle id, const ConnParam& param, Time now);
  Result<void> accept(Owner owner, IdHandle id, const ConnParam& param, Time now);
  Result<void> reject(Owner owner, IdHandle id, const Refusal& refusal, Time now);
  Result<void> establish(Owner owner, IdHandle id, Time now,
                         std::span<const std::byte> private_data = {});
  // Disconnects, or rejects the REP if it waits for an RTU.  Succeeds even if the peer has
  // disconnected before.  kBadState: accept() was not called yet, or the peer has not answered
  // connect() yet.
  Result<void> disconnect(Owner owner, IdHandle id, Time now,
                          std::span<const std::byte> private_data = {});
  // Offers the peer an alternate path; PATH_ANSWERED or PATH_UNANSWERED follows.  Only the active
  // side of a connection without a port space may call it.
  Result<void> load_path(Owner owner, IdHandle id, const PathInfo& path,
                         std::span<const std::byte> private_data, Time now);
  // Answers PATH_OFFERED.
  Result<void> answer_path(Owner owner, IdHandle id, const PathAnswer& answer, Time now);
  Result<void> set_option(Owner owner, IdHandle id, Option option, std::uint32_t value);
  Result<IdInfo> info(Owner owner, IdHandle id) const;
  // Returns the id that conflicts with the address: because of it, bind() would fail with
  // kAddressInUse.  If the address is null, returns the id because of which listen() would fail.
  std::optional<Row> find_conflict(Owner owner, IdHandle id, const SocketAddress* address) const;
  // Returns 0 if the id has no name, or if there is no such id.
  std::uint64_t name(IdHandle id) const;

  // Reports that this QP of this host received its first packet.
  void comm_established(Qpn local, Time now) { cm_.comm_established(local, now), drain_cm(now); }
  // Reports that the QP migrated to the alternate path that both sides accepted.
  void path_migrated(Qpn local) { cm_.path_migrated(local); }
  // Names the user of a program, so that the program's ids count towards the user's
  // ids_per_user_max.  Call this before the program has ids.
  void set_user(Owner owner, std::uint32_t user) { counts_.set_user(owner, user); }
  // Destroys all ids of a program that has ended.
  void remove_client(Owner owner, Time now);

  // Disconnects a connection whose agent has died.  kAddressNotFound: its source is not an address
  // of this host.  Other errors are those of cm::Manager::inherit().
  Result<void> inherit_disconnect(const PendingDisconnect& pending, Time now);

  // ---- Host
  void on_interfaces(std::vector<Interface> interfaces, Time now);
  // Sets the P_Key table of a port.  See cm::Manager::set_pkeys().
  void set_pkeys(PortId port, std::vector<Pkey> pkeys) { cm_.set_pkeys(port, std::move(pkeys)); }
  // Handles the answer to a RouteQuery.  Ignores answers that come too late, or that belong to no
  // RouteQuery.
  void on_route(std::uint64_t token, const Result<Route>& route, Time now);

  // ---- Wire and time
  void receive(const mad::Delivered& mad, Time now);
  void on_timer(Time now);
  Time deadline() const;
  std::optional<Output> poll();

  // ---- Queries
  // Returns the number of connections, timewait included.
  std::size_t endpoints() const { return cm_.endpoints(); }
  // Returns true if a connection without an id is still ending: it disconnects or is in timewait.
  bool has_orphans() const { return cm_.has_orphans(); }
  // Sends queued DREQs, see cm::Manager.
  bool flush_disconnects(Time now) { return cm_.flush_disconnects(now); }
  std::size_t ids() const { return ids_.size(); }
  // Counts ids that were not made because of a limit, also ids for requests.
  struct LimitRefusals {
    std::uint64_t ids = 0;
    std::uint64_t ids_per_owner = 0;
    std::uint64_t ids_per_user = 0;
    friend bool operator==(const LimitRefusals&, const LimitRefusals&) = default;
  };
  const LimitRefusals& limit_refusals() const { return limit_refusals_; }
  const cm::Counters& cm_counters() const { return cm_.counters(); }
  // Calls f(const Row&) for each id, in order of slots.
  void visit(auto&& f) const {
    ids_.for_each([&](IdHandle handle, const Id& id) { f(row(handle, id)); });
  }

 private:
  Result<IdHandle> add_id(Owner owner, std::uint16_t port_space, std::uint8_t qp_type);
  Result<Id*> find(Owner owner, IdHandle handle) const;
  Row row(IdHandle handle, const Id& id) const;

  // ---- Addresses
  Result<const Interface*> local_interface(const SocketAddress& address) const;
  Result<void> bind_id(IdHandle handle, Id& id, SocketAddress address);
  void finish_resolve(IdHandle handle, Id& id, const Result<Route>& route);
  PathInfo path_of(const Id& id, const Route& route) const;
  void cancel_query(Id& id);
  static std::unique_ptr<Id::Listening> make_listening(std::uint32_t backlog);
  static void start_listening(Id& id, std::unique_ptr<Id::Listening> listening);

  // ---- Connections
  std::uint8_t ack_timeout(const Id& id) const;
  mad::Address mad_address(const Id& id) const;
  Duration round_trip(const Id& id) const;
  ServiceId service_of(const Id& id) const;
  void write_private_data(const Id& id, std::span<const std::byte> data,
                          std::span<std::byte> to) const;
  cm::ConnectRequest connect_request(const Id& id, const ConnParam& param,
                                     std::span<const std::byte> data) const;
  // These replace connect(), accept() and reject() for ids with a datagram QP.
  Result<void> connect_datagrams(IdHandle handle, Id& id, const ConnParam& param, Time now);
  Result<void> accept_datagrams(Id& id, const ConnParam& param, Time now);
  Result<void> reject_datagrams(Id& id, std::span<const std::byte> private_data, Time now);
  void remove_id(IdHandle handle, Id& id, Time now);
  void release_port(IdHandle handle, Id& id);
  PendingDisconnect pending_disconnect_of(const Id& id) const;

  // The cookie of a listener of cm::Manager is the handle of its id.  If the cookie is kByPort, the
  // port of the request selects the id in ports_.
  static constexpr std::uint64_t kByPort = 0;

  // ---- Events of the connection manager
  // Handles the outputs of cm_.  Call this after each input to cm_.
  void drain_cm(Time now);
  void on(const cm::ReqReceived& event, Time now);
  void on(const cm::RepReceived& event, Time now);
  void on(const cm::Established& event, Time now);
  void on(const cm::Rejected& event, Time now);
  void on(const cm::Unreachable& event, Time now);
  void on(const cm::Disconnected& event, Time now);
  void on(const cm::LapReceived& event, Time now);
  void on(const cm::AprReceived& event, Time now);
  void on(const cm::LapUnanswered& event, Time now);
  void on(const cm::TimewaitExit& event, Time now);
  void on(const cm::SidrReqReceived& event, Time now);
  void on(const cm::SidrRepReceived& event, Time now);
  void on(const cm::SidrUnreachable& event, Time now);
  void on(const cm::StateChanged& event, Time) { outputs_.emplace_back(event); }
  // Tells why make_child() made no id for a request.
  enum class ChildError : std::uint8_t { kNotForThisHost, kNoListener, kLimitReached };
  struct IncomingRequest {
    // Set if the listener has no port space; otherwise the port in service_id selects the listener.
    IdHandle listener{};
    ServiceId service_id{};
    std::span<const std::byte> private_data;
    const mad::Address& address;  // on InfiniBand, that of the path which the REQ names
    const mad::Address& packet_address;
    std::uint8_t qp_type{};
  };
  struct ListenerMatch {
    IdHandle listener{};
    SocketAddress source{};
    SocketAddress destination{};
  };
  bool is_at_port(const Gid& ip, PortId port) const;
  std::expected<ListenerMatch, ChildError> find_listener(const IncomingRequest& request) const;
  // Creates the id for a request, as a child of the listener that find_listener() finds.
  std::expected<IdHandle, ChildError> make_child(const IncomingRequest& request);
  Gid gid_of(PortId port) const;
  std::uint32_t sgid_index(const mad::Address& address) const;
  void apply_request(Id& id, const cm::ReqReceived& request);
  void report_request(IdHandle handle, const Id& id, IdHandle listener,
                      const cm::ReqReceived& request);
  Result<void> check_alternate(const Id& id, const ConnParam& param) const;
  Result<const Interface*> source_of(const PathInfo& path) const;
  cm::AlternatePath alternate_path(const Id& id, const PathInfo& path,
                                   const Interface& source) const;
  PathInfo path_of(const mad::Address& address, std::uint8_t ack_timeout) const;
  Duration give_up_after(const ConnParam& param) const;
  void leave_backlog(Id& child);
  Event event(IdHandle handle, const Id& id, EventKind kind, std::int32_t status = 0) const;
  void emit(const Event& event) { outputs_.push_back(event); }

  Config config_;
  Random random_;
  cm::Manager cm_;
  Slots<Id> ids_;
  IdCounts counts_{};
  Ports ports_;
  std::vector<Interface> interfaces_;
  struct Query {
    IdHandle id{};
    Time deadline{};
  };
  std::map<std::uint64_t, Query> queries_;  // by token
  std::set<std::pair<Time, IdHandle>> query_deadlines_;
  std::uint64_t next_token_ = 1;
  LimitRefusals limit_refusals_{};
  std::deque<Output> outputs_;
};

}  // namespace verbena::rdmacm
