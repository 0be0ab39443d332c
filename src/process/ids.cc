// Implements the program's side of RDMA CM ids: requests to the agent, events of the agent, and
// the state changes of the ids' QPs.

#include <algorithm>
#include <utility>

#include "process/ask.h"
#include "process/process.h"
#include "rdmacm/rules.h"
#include "wire/source_port.h"

namespace verbena::process {
namespace {

using hca::QpState;
using Stage = Connection::Stage;
namespace attribute = hca::attribute;

constexpr std::uint32_t kIdAccess =
    hca::access::kRemoteWrite | hca::access::kRemoteRead | hca::access::kRemoteAtomic;

}  // namespace

Result<Connection*> Process::find(ConnectionHandle id) const {
  Connection* connection = connections_.find(id);
  if (connection == nullptr) return fail(Errc::kBadHandle, "no such id");
  return connection;
}

Result<Connection*> Process::find_with_agent(ConnectionHandle id) {
  Connection* connection = VB_TRY(find(id));
  if (!connection->agent_id) return fail(Errc::kDeviceFatal, kAgentOfIdDiedText);
  if (requests_.unsent() >= kUnreadMax) {
    ++messages_refused_;
    return fail(Errc::kNoResources, "the agent does not read its messages (kUnreadMax)");
  }
  return connection;
}

Result<const Connection*> Process::connection(ConnectionHandle id) const {
  return static_cast<const Connection*>(VB_TRY(find(id)));
}

// ---- requests -----------------------------------------------------------------------------------

Result<ConnectionHandle> Process::create_id(std::uint32_t port_space, std::uint32_t qp_type,
                                            std::uint64_t cookie) {
  if (!connected()) return fail(Errc::kDeviceFatal, kNoAgentText);
  VB_TRY_VOID(rdmacm::check_port_space(port_space, qp_type));
  auto connection = std::make_unique<Connection>();
  connection->cookie = cookie;
  connection->port_space = port_space;
  connection->qp_type = qp_type;
  connection->qkey = rdmacm::default_qkey(port_space);
  const ConnectionHandle handle = VB_TRY(connections_.insert(std::move(connection)));
  connections_.find(handle)->agent_id = {handle.value | ipc::kNameBit};
  return handle;
}

// The agent must know the id before any other message names it.
void Process::create_in_agent(Connection& connection) {
  if (connection.create_sent && !connection.create_refused) return;
  requests_.send(ipc::CreateId{connection.agent_id, connection.port_space, connection.qp_type},
                 Urgency::kMayWait);
  connection.create_sent = true;
  connection.create_refused = false;
}

Result<void> Process::destroy_id(ConnectionHandle id) {
  const auto connection = connections_.remove(id);
  if (!connection) return fail(Errc::kBadHandle, "no such id");
  for (auto& [cookie, group] : connection->groups) leave(group);
  const bool frees_resources = connection->stage != Stage::kEnded || connection->program_chose_port;
  if (connection->agent_id && connection->create_sent)
    requests_.send(ipc::DestroyId{connection->agent_id},
                   frees_resources ? Urgency::kUrgent : Urgency::kMayWait);
  // CONNECT_REQUESTs that the program has not seen are destroyed with their listener.
  std::vector<ConnectionHandle> unseen;
  std::erase_if(notices_, [&](const Notice& notice) {
    const auto* cm = std::get_if<CmNotice>(&notice);
    if (cm == nullptr || (cm->id != id && cm->new_id != id)) return false;
    if (cm->new_id && cm->new_id != id) unseen.push_back(cm->new_id);
    return true;
  });
  for (const ConnectionHandle child : unseen) (void)destroy_id(child).has_value();
  return {};
}

void Process::record_step(ConnectionHandle id, Connection::Step step, Time now) {
  if (Connection* connection = connections_.find(id)) {
    connection->step = step;
    connection->step_began = now;
  }
}

Result<void> Process::set_cookie(ConnectionHandle id, std::uint64_t cookie) {
  VB_TRY(find(id))->cookie = cookie;
  return {};
}

Started<ipc::Bound> Process::bind(ConnectionHandle id, const rdmacm::SocketAddress& address,
                                  Completion<ipc::Bound> done) {
  return ask_about(
      id, ipc::Bind{{}, address},
      Completion<ipc::Bound>([this, id, done = std::move(done)](Result<ipc::Bound> bound) mutable {
        Connection* connection = connections_.find(id);
        if (bound && connection != nullptr) {
          if (connection->stage == Stage::kNew) connection->stage = Stage::kBound;
          connection->program_chose_port = true;
          set_source(*connection, *bound);
        }
        done(std::move(bound));
      }));
}

void Process::set_source(Connection& connection, const ipc::Bound& bound) {
  connection.source = bound.source;
  connection.bound = bound.on_device;
  if (bound.on_device) connection.path = bound.path;
}

Started<ipc::Done> Process::resolve_address(ConnectionHandle id,
                                            const rdmacm::SocketAddress& source,
                                            const rdmacm::SocketAddress& destination,
                                            Duration timeout, Completion<ipc::Done> done) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (connection.stage > Stage::kBound) return failed({Errc::kBadState, 0, "resolved already"});
  ipc::ResolveAddress message{{}, source, destination, timeout};
  connection.program_chose_port |= source.family != 0;
  // The program expects the errors of these calls at once: a source address may be invalid or in
  // use, and a service id may not belong to the port space.
  if (connection.stage != Stage::kNew || source.family != 0 || destination.by_gid ||
      connection.is_without_port_space()) {
    return ask_about(id, std::move(message),
                     set_stage_on_success(id, Stage::kResolving, std::move(done)));
  }
  connection.destination = destination;
  return send_without_reply(connection, Stage::kResolving, std::move(message));
}

// The path came with the address, so no request is needed.  The exception is an id that has found
// services, because its address is not resolved yet.
Started<ipc::Done> Process::resolve_route(ConnectionHandle id, Duration timeout,
                                          Completion<ipc::Done> done) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (connection.stage == Stage::kBound && !connection.services.empty()) {
    return resolve_service(id, timeout, std::move(done));
  }
  if (connection.stage != Stage::kAddressResolved) {
    return failed({Errc::kBadState, 0, "no address resolved"});
  }
  link::Address& address = connection.path.address;
  if (!address.is_infiniband()) address.traffic_class = connection.tos;
  report_route(id, connection);
  return Result<ipc::Done>(ipc::Done{});
}

void Process::report_route(ConnectionHandle id, Connection& connection) {
  notices_.push_back(
      CmNotice{.id = id,
               .cookie = connection.cookie,
               .event = {.id = connection.agent_id,
                         .kind = rdmacm::EventKind::kRouteResolved,
                         .port_space = static_cast<std::uint16_t>(connection.port_space),
                         .qp_type = static_cast<std::uint8_t>(connection.qp_type),
                         .source = connection.source,
                         .destination = connection.destination,
                         .path = connection.path}});
  connection.stage = Stage::kRouteResolved;
  connection.resolved = true;
}

Completion<ipc::Done> Process::set_stage_on_success(ConnectionHandle id, Stage stage,
                                                    Completion<ipc::Done> done) const {
  const Connection* const requester = connections_.find(id);
  const Stage stage_before = requester == nullptr ? stage : requester->stage;
  return [this, id, stage_before, stage, done = std::move(done)](Result<ipc::Done> result) mutable {
    Connection* const connection = connections_.find(id);
    if (result && connection != nullptr && connection->stage == stage_before)
      connection->stage = stage;
    done(std::move(result));
  };
}

Started<ipc::Bound> Process::listen(ConnectionHandle id, int backlog, const rdmacm::Filter& filter,
                                    Completion<ipc::Bound> done) {
  const Connection* const requester = connections_.find(id);
  const Stage stage_before = requester == nullptr ? Stage::kNew : requester->stage;
  return ask_about(id, ipc::Listen{{}, backlog, filter},
                   Completion<ipc::Bound>([this, id, stage_before, done = std::move(done)](
                                              Result<ipc::Bound> bound) mutable {
                     Connection* const connection = connections_.find(id);
                     if (bound && connection != nullptr) {
                       if (connection->stage == stage_before) connection->stage = Stage::kListening;
                       set_source(*connection, *bound);
                     }
                     done(std::move(bound));
                   }));
}

Result<void> Process::notify(ConnectionHandle id) {
  const Connection& connection = *VB_TRY(find_with_agent(id));
  if (connection.stage != Stage::kAccepting && connection.stage != Stage::kConnected) {
    return fail(Errc::kBadState, "the id does not accept a connection");
  }
  // If the program created the QP itself, the id does not know the QP.  on_qp_event() notifies the
  // agent of the first packet anyway.
  if (connection.qp) requests_.send(ipc::Notify{connection.qpn});
  return {};
}

Started<ipc::Done> Process::set_option(ConnectionHandle id, std::uint32_t level,
                                       std::uint32_t option, std::uint64_t value,
                                       Completion<ipc::Done> done) {
  const bool is_tos = level == 0 && option == std::to_underlying(rdmacm::Option::kTos);
  return ask_about(id, ipc::SetOption{{}, level, option, value},
                   Completion<ipc::Done>([this, id, is_tos, value, done = std::move(done)](
                                             Result<ipc::Done> result) mutable {
                     Connection* const connection = connections_.find(id);
                     if (result && is_tos && connection != nullptr) {
                       connection->tos = static_cast<std::uint8_t>(value);
                     }
                     done(std::move(result));
                   }));
}

Started<ipc::Done> Process::flush_capture(Completion<ipc::Done> done) {
  if (!connected()) return failed({Errc::kDeviceFatal, 0, kNoAgentText});
  return requests_.ask<ipc::Done>(ipc::FlushCapture{}, std::move(done));
}

// ---- the queue pair of an id --------------------------------------------------------------------

Result<void> Process::set_qp(ConnectionHandle id, hca::QpHandle qp, Time now) {
  Connection& connection = *VB_TRY(find(id));
  if (!qp) {
    connections_.remove_qp(connection);
    return {};
  }
  VB_TRY_VOID(check_alive(qp));
  const auto info = VB_TRY(engine_.query_qp(qp));
  if (connection.bound && info.init.device != connection.path.address.port.device) {
    return fail(Errc::kInvalidArgument, "the QP and the id belong to different devices");
  }
  const QpState state = info.attributes.state;
  if (state == QpState::kReset || state == QpState::kInit) VB_TRY_VOID(prepare_qp(id, info, now));
  connections_.set_qp(id, qp, info.qpn);
  table_.mark_outdated();
  return {};
}

// Moves a new QP to INIT.  A datagram QP needs no values of a peer, so it goes on to RTS.
Result<void> Process::prepare_qp(ConnectionHandle id, const hca::Engine::QpInfo& info, Time now) {
  const hca::QpHandle qp = VB_TRY(engine_.find_qp(info.qpn));
  const Transition init = VB_TRY(transition(id, QpState::kInit));
  VB_TRY_VOID(engine_.modify_qp(qp, init.attributes, init.mask, now));
  if (info.init.type != hca::QpType::kUd) return {};
  VB_TRY_VOID(move_qp(qp, {.state = QpState::kRtr}, attribute::kState, now));
  return engine_.modify_qp(qp, {.state = QpState::kRts}, attribute::kState | attribute::kSqPsn,
                           now);
}

// Converts a path of the CM's messages to the path of a QP.  path() expects the path bits in place
// of the source LID.
Result<hca::Path> Process::path_of(const rdmacm::PathInfo& from) const {
  link::Address to = from.address;
  if (to.is_infiniband()) {
    const ipc::Port* const port = find_port(to.port);
    if (port == nullptr)
      return fail(Errc::kInvalidArgument, "no port has the source address of the path");
    to.source_lid.value = static_cast<std::uint16_t>(to.source_lid.value - port->lid.value);
  } else {
    to.has_grh = true;
  }
  return path(from.sgid_index, to);
}

Result<Process::Transition> Process::transition(ConnectionHandle id, QpState to) const {
  const Connection& connection = *VB_TRY(find(id));
  const rdmacm::QpTransition& qp = connection.qp_transition;
  if (to == QpState::kInit) {
    const rdmacm::PathInfo& from = connection.path;
    Transition init{.attributes = {.state = to,
                                   .access_flags = kIdAccess,
                                   .pkey_index = pkey_index_of(from),
                                   .port = from.address.port.number},
                    .mask = attribute::kState | attribute::kPkeyIndex | attribute::kPort};
    if (connection.is_datagram()) {
      init.attributes.qkey = VB_TRY(qkey_of(connection));
      init.mask |= attribute::kQkey;
    } else {
      init.mask |= attribute::kAccessFlags;
    }
    return init;
  }
  if (qp.valid == 0) return fail(Errc::kBadState, "the peer's QP is not known yet");
  if (to == QpState::kRtr) {
    return Transition{
        .attributes =
            {.state = to,
             .path_mtu = static_cast<hca::Mtu>(qp.path_mtu),
             .rq_psn = {qp.rq_psn},
             .destination_qpn = {qp.remote_qpn},
             .path = VB_TRY(path_of(qp.path)),
             .port = qp.path.address.port.number,  // not applied, because the mask has no kPort
             .max_dest_rd_atomic = qp.responder_resources,
             .min_rnr_timer = qp.min_rnr_timer,
             .peer_rnr_retries = qp.peer_rnr_retries},
        .mask = attribute::kState | attribute::kPath | attribute::kPathMtu |
                attribute::kDestinationQpn | attribute::kRqPsn | attribute::kMaxDestRdAtomic |
                attribute::kMinRnrTimer};
  }
  if (to == QpState::kRts) {
    return Transition{.attributes = {.state = to,
                                     .sq_psn = {qp.sq_psn},
                                     .max_rd_atomic = qp.initiator_depth,
                                     .timeout = qp.ack_timeout,
                                     .retry_count = qp.retry_count,
                                     .rnr_retry = qp.rnr_retry_count},
                      .mask = attribute::kState | attribute::kTimeout | attribute::kRetryCount |
                              attribute::kRnrRetry | attribute::kSqPsn | attribute::kMaxRdAtomic};
  }
  return fail(Errc::kInvalidArgument, "no attributes for this state");
}

// Moves the QP from INIT to RTR and RTS with the values of CONNECT_REQUEST or CONNECT_RESPONSE.
Result<void> Process::connect_qp(ConnectionHandle id, Time now) {
  const Connection& connection = *VB_TRY(find(id));
  for (const QpState state : {QpState::kRtr, QpState::kRts}) {
    const Transition move = VB_TRY(transition(id, state));
    VB_TRY_VOID(move_qp(connection.qp, move.attributes, move.mask, now));
  }
  table_.mark_outdated();
  return {};
}

Result<void> Process::move_to_error(Connection& connection, Time now) {
  if (!connection.qp) return {};
  table_.mark_outdated();
  return engine_.modify_qp(connection.qp, {.state = QpState::kError}, attribute::kState, now);
}

// ---- events -------------------------------------------------------------------------------------

void Process::on_event(const rdmacm::Event& event, Time now, std::string why) {
  using rdmacm::EventKind;
  if (event.kind == EventKind::kConnectRequest && event.id != event.listen_id) {
    return on_request_event(event);
  }
  ConnectionHandle handle;
  Connection* const found = connections_.find_by_agent_id(event.id, handle);
  if (found == nullptr) return;  // the program destroyed the id while the event was under way
  Connection& connection = *found;
  CmNotice notice{.id = handle,
                  .cookie = connection.cookie,
                  .unanswered = connection.unanswered,
                  .why = std::move(why),
                  .event = event};
  switch (event.kind) {
    case EventKind::kAddrResolved:
      connection.stage = Stage::kAddressResolved;
      connection.source = event.source;
      connection.destination = event.destination;
      connection.path = event.path;
      connection.bound = true;
      // The agent may know the Q_Key of IPoIB before a group is joined.
      if (connection.qkey.value == 0) connection.qkey = {event.param.qkey};
      if (connection.reports_only_route) report_address_as_route(connection, notice);
      break;
    case EventKind::kAddrError:
      connection.stage = Stage::kBound;  // the program may try again
      if (connection.reports_only_route) report_address_as_route(connection, notice);
      break;
    case EventKind::kConnectRequest:  // peer to peer: this side has become the passive side
      connection.qp_transition = event.qp;
      connection.pending_disconnect = event.pending_disconnect;
      connection.offered_path = event.param.alternate;
      connection.stage = Stage::kRequested;
      break;
    case EventKind::kConnectResponse:
      connection.qp_transition = event.qp;
      connection.pending_disconnect = event.pending_disconnect;
      connection.peer_may_be_connected = true;
      connection.accepted_path = {};
      if (event.param.alternate_accepted) connection.accepted_path = event.param.alternate;
      // A program that has created its QP itself, or uses an id without a port space, calls
      // establish() itself.
      if (connection.qp && !connection.is_without_port_space()) {
        establish_id(connection, notice, now);
      } else {
        connection.stage = Stage::kResponded;
      }
      break;
    case EventKind::kPathOffered: connection.offered_path = event.param.alternate; break;
    case EventKind::kPathAnswered: on_path_answered(connection, notice, now); break;
    case EventKind::kEstablished:
      connection.established = true;
      if (connection.stage != Stage::kEnded) connection.stage = Stage::kConnected;
      if (connection.qp && !connection.is_datagram())
        (void)engine_.mark_established(connection.qp).has_value();
      break;
    case EventKind::kRejected:
    case EventKind::kUnreachable:
    case EventKind::kConnectError:
      connection.end();
      if (connection.established) {
        // The peer rejected while our RTU was under way: an established connection ends.
        notice.event.kind = EventKind::kDisconnected;
        notice.event.status = -ECONNRESET;
        break;
      }
      // A datagram QP stays usable: it may serve other peers.
      if (!connection.is_datagram()) (void)move_to_error(connection, now).has_value();
      break;
    case EventKind::kDisconnected: connection.end(); break;
    default: break;
  }
  notices_.push_back(std::move(notice));
}

// Handles the peer's acceptance: moves the QP to RTS, and turns CONNECT_RESPONSE into ESTABLISHED.
void Process::establish_id(Connection& connection, CmNotice& notice, Time now) {
  if (const auto moved = connect_qp(notice.id, now); !moved) {
    requests_.send(ipc::Reject{.id = connection.agent_id});
    connection.end();
    notice.event.kind = rdmacm::EventKind::kConnectError;
    notice.event.status = -to_errno(moved.error());
    return;
  }
  load_accepted_alternate(connection, now);
  requests_.send(ipc::Establish{connection.agent_id, {}}, Urgency::kMayWait);
  (void)engine_.mark_established(connection.qp).has_value();
  notice.event.kind = rdmacm::EventKind::kEstablished;
  connection.established = true;
  connection.stage = Stage::kConnected;
}

// Reports the failure of a request as an event, because the program did not wait for the reply.
// Reports nothing if the connection is already over, because an earlier event has reported the end.
void Process::on_refused(const ipc::Refused& refused, Time now) {
  using rdmacm::EventKind;
  ConnectionHandle handle;
  Connection* const connection = connections_.find_by_agent_id(refused.id, handle);
  if (connection == nullptr) return;
  rdmacm::Event event{.id = refused.id,
                      .status = -to_errno({refused.code, refused.detail, ""}),
                      .source = connection->source,
                      .destination = connection->destination};
  // The refused request has not changed the agent's id.  So this id returns to the state before the
  // request, and the program may try again.
  const auto report_failure = [&](Stage stage_of_request, EventKind kind, Stage stage_before) {
    if (connection->stage != stage_of_request) return;
    event.kind = kind;
    notices_.push_back(
        CmNotice{.id = handle, .cookie = connection->cookie, .why = refused.text, .event = event});
    connection->stage = stage_before;
  };
  switch (refused.request) {
    case ipc::Type::kCreateId: connection->create_refused = true; return;
    case ipc::Type::kResolveAddress:
      return report_failure(Stage::kResolving, EventKind::kAddrError, Stage::kNew);
    case ipc::Type::kConnect:
      return report_failure(Stage::kConnecting, EventKind::kConnectError, Stage::kRouteResolved);
    case ipc::Type::kAccept:  // the QP is in RTS already: on_event() moves it to the error state
      if (connection->stage != Stage::kAccepting) return;
      event.kind = EventKind::kConnectError;
      return on_event(event, now, refused.text);
    default: return;  // other requests, such as Reject, concern connections that have ended
  }
}

void Process::on_request_event(const rdmacm::Event& event) {
  ConnectionHandle listener_handle;
  const Connection* const listener =
      connections_.find_by_agent_id(event.listen_id, listener_handle);
  if (listener == nullptr) {
    requests_.send(ipc::DestroyId{event.id});
    return;
  }
  const std::uint64_t cookie = listener->cookie;
  const Qkey qkey = listener->qkey;
  auto connection = std::make_unique<Connection>();
  connection->agent_id = event.id;
  connection->create_sent = connection->unanswered = true;
  connection->stage = Stage::kRequested;
  connection->port_space = event.port_space;
  connection->qp_type = event.qp_type;
  connection->qkey = qkey;
  connection->source = event.source;
  connection->destination = event.destination;
  connection->path = event.path;
  connection->bound = connection->resolved = true;
  connection->qp_transition = event.qp;
  connection->pending_disconnect = event.pending_disconnect;
  connection->offered_path = event.param.alternate;
  const auto handle = connections_.insert(std::move(connection));
  if (!handle) {
    requests_.send(ipc::DestroyId{event.id});  // the agent then rejects the peer
    return;
  }
  connections_.set_agent_id(event.id, *handle);
  notices_.push_back(
      CmNotice{.id = listener_handle, .cookie = cookie, .new_id = *handle, .event = event});
}

}  // namespace verbena::process
