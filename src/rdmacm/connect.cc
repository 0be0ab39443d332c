// Implements the calls of programs that concern connections.

#include <algorithm>

#include "rdmacm/manager.h"
#include "rdmacm/private_data.h"
#include "rdmacm/rules.h"
#include "wire/rdma_ip_cm.h"

namespace verbena::rdmacm {

namespace {

constexpr std::uint8_t kRetryMax = 7;  // 3 bits

// These numbers estimate the round trip to a new peer, on this host or on another one.  The first
// repeat of a REQ comes after about four round trips, but not before cm::Retry::kFirstIntervalMin.
constexpr Duration kRoundTripLoopback = std::chrono::milliseconds(1);
constexpr Duration kRoundTripNetwork = std::chrono::milliseconds(25);

Result<void> check_numbers(const ConnParam& param) {
  const bool in_range = param.qpn <= kMask24 && (param.psn <= kMask24 || param.psn == kChoosePsn);
  return in_range ? Result<void>{}
                  : fail(Errc::kInvalidArgument, "a QP number or PSN has at most 24 bits");
}

}  // namespace

Result<void> Manager::connect(Owner owner, IdHandle handle, const ConnParam& param, Time now) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.state != IdState::kResolved) return fail(Errc::kBadState, "no address resolved");
  // On InfiniBand the path record has the traffic class.
  if (!id.path.address.is_infiniband()) id.path.address.traffic_class = id.tos;
  if (id.is_datagram()) return connect_datagrams(handle, id, param, now);
  VB_TRY_VOID(check_numbers(param));
  const auto data = VB_TRY(private_data(param, connect_private_bytes(id.qp_type, id.source)));
  VB_TRY_VOID(check_alternate(id, param));
  auto alternate = std::move(id.options.alternate);
  if (param.alternate.address.source != Gid{}) {
    alternate = std::make_unique<PathInfo>(param.alternate);
  }
  id.options = {
      .responder_resources = std::min(param.responder_resources, config_.depth_max),
      .initiator_depth = std::min(param.initiator_depth, config_.depth_max),
      .retry_count = std::min(param.retry_count, kRetryMax),
      .rnr_retry_count = std::min(param.rnr_retry_count, kRetryMax),
      .give_up_after = std::chrono::ceil<decltype(id.options.give_up_after)>(give_up_after(param)),
      .alternate = std::move(alternate)};
  id.is_peer_to_peer = param.peer_to_peer;
  id.qpn = param.qpn;
  id.qp.rq_psn = param.psn != kChoosePsn ? param.psn : random_.next32() & kMask24;
  id.qp.ack_timeout = ack_timeout(id);
  id.endpoint = VB_TRY(cm_.connect(connect_request(id, param, data), handle.value, now));
  id.state = IdState::kConnecting;
  drain_cm(now);
  return {};
}

Duration Manager::give_up_after(const ConnParam& param) const {
  if (param.timeout <= Duration(0)) return config_.connect_timeout;
  return std::min<Duration>(param.timeout, std::chrono::hours(1));
}

std::uint8_t Manager::ack_timeout(const Id& id) const {
  if (id.ack_timeout != 0) return id.ack_timeout;
  const int from_path =
      std::min(id.path.packet_life_time + 1, 31);  // a round trip takes two packet life times
  return std::max(static_cast<std::uint8_t>(from_path), config_.ack_timeout_min);
}

mad::Address Manager::mad_address(const Id& id) const { return {.path = id.path.address}; }

Duration Manager::round_trip(const Id& id) const {
  return id.is_loopback ? kRoundTripLoopback : kRoundTripNetwork;
}

ServiceId Manager::service_of(const Id& id) const {
  return id.destination.by_gid ? id.destination.service
                               : service_id(id.port_space, id.destination.port);
}

// Writes the private data of a request: first the header with the addresses (not if the id is bound
// by GID), then the data of the program.
void Manager::write_private_data(const Id& id, std::span<const std::byte> data,
                                 std::span<std::byte> to) const {
  if (id.has_header()) {
    wire::encode_to(to, wire::rdma_ip_cm_header(id.source.ip, id.destination.ip, id.source.port));
    to = to.subspan(wire::kRdmaIpCmHeaderBytes);
  }
  std::ranges::copy(data, to.begin());
}

cm::ConnectRequest Manager::connect_request(const Id& id, const ConnParam& param,
                                            std::span<const std::byte> data) const {
  const PathInfo& path = id.path;
  cm::ConnectRequest request{
      .address = mad_address(id),
      .service_id = service_of(id),
      .qpn = {param.qpn},
      .starting_psn = {id.qp.rq_psn},
      .responder_resources = id.options.responder_resources,
      .initiator_depth = id.options.initiator_depth,
      .retry_count = id.options.retry_count,
      .rnr_retry_count = id.options.rnr_retry_count,
      .end_to_end_flow_control = param.flow_control != 0,
      .srq = param.srq != 0,
      .path_mtu = path.mtu,
      .pkey = {path.pkey},
      .packet_life = path.packet_life_time,
      .local_ack_timeout = id.qp.ack_timeout,
      .ece = {param.ece_vendor_id, param.ece_options},
      .peer_to_peer = id.is_peer_to_peer,
      .give_up_after = id.options.give_up_after,
      .round_trip = round_trip(id),
  };
  if (id.options.alternate) {
    if (const auto source = source_of(*id.options.alternate)) {
      request.alternate_path = alternate_path(id, *id.options.alternate, **source);
    }
  }
  write_private_data(id, data, request.private_data);
  return request;
}

Result<void> Manager::accept(Owner owner, IdHandle handle, const ConnParam& param, Time now) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.state != IdState::kRequested) return fail(Errc::kBadState, "no request to accept");
  if (id.is_datagram()) return accept_datagrams(id, param, now);
  VB_TRY_VOID(check_numbers(param));
  if (param.alternate_accepted && id.port_space != kPortSpaceNone &&
      !id.path.address.is_infiniband()) {
    return fail(Errc::kNotSupported, "the RDMA CM has no alternate paths on Ethernet");
  }
  const auto data = VB_TRY(private_data(param, kAcceptPrivateBytes));
  QpTransition qp = id.qp;  // if the CM refuses to accept, the id stays as it is
  if (param.psn != kChoosePsn) qp.rq_psn = param.psn;
  accept_resources(qp, param);
  cm::AcceptParameters parameters{
      .qpn = {param.qpn},
      .starting_psn = {qp.rq_psn},
      .responder_resources = qp.responder_resources,
      .initiator_depth = qp.initiator_depth,
      .rnr_retry_count = std::min(param.rnr_retry_count, kRetryMax),
      .end_to_end_flow_control = param.flow_control != 0,
      .srq = param.srq != 0,
      .alternate_path_accepted = param.alternate_accepted,
      .ece = {param.ece_vendor_id, param.ece_options},
      .give_up_after = give_up_after(param),
  };
  std::ranges::copy(data, parameters.private_data.begin());
  VB_TRY_VOID(cm_.accept(id.endpoint, parameters, now));
  id.qp = qp;
  id.qpn = param.qpn;
  leave_backlog(id);
  id.state = IdState::kAccepting;
  drain_cm(now);
  return {};
}

Result<void> Manager::reject(Owner owner, IdHandle handle, const Refusal& refusal, Time now) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.state != IdState::kRequested && id.state != IdState::kResponded) {
    return fail(Errc::kBadState, "no request or response to reject");
  }
  VB_TRY_VOID(check_reason(id.port_space, refusal.reason));
  if (id.is_datagram()) return reject_datagrams(id, refusal.private_data, now);
  VB_TRY_VOID(cm_.reject(id.endpoint,
                         {.reason = static_cast<wire::cm::RejReason>(refusal.reason),
                          .additional_info = refusal.additional_info,
                          .private_data = refusal.private_data},
                         now));
  leave_backlog(id);
  id.state = IdState::kFailed;
  drain_cm(now);
  return {};
}

Result<void> Manager::establish(Owner owner, IdHandle handle, Time now,
                                std::span<const std::byte> private_data) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.state != IdState::kResponded) return fail(Errc::kBadState, "no REP waits for an RTU");
  VB_TRY_VOID(cm_.establish(id.endpoint, private_data, now));
  id.state = IdState::kConnected;
  drain_cm(now);
  return {};
}

Result<void> Manager::disconnect(Owner owner, IdHandle handle, Time now,
                                 std::span<const std::byte> private_data) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.is_datagram() && id.state == IdState::kConnected) {  // SIDR has no disconnect message
    id.state = IdState::kDisconnected;
    return {};
  }
  switch (id.state) {
    case IdState::kConnected:
    case IdState::kAccepting:
      VB_TRY_VOID(cm_.disconnect(id.endpoint, private_data, now));
      id.state = IdState::kDisconnecting;
      drain_cm(now);
      return {};
    case IdState::kResponded: return reject(owner, handle, {.private_data = private_data}, now);
    case IdState::kDisconnecting:
    case IdState::kDisconnected:
    case IdState::kFailed: return {};
    case IdState::kIdle:
    case IdState::kBound:
    case IdState::kListening:
    case IdState::kResolving:
    case IdState::kResolved:
    case IdState::kConnecting:
    case IdState::kRequested: break;
  }
  return fail(Errc::kBadState, "not connected");
}

Result<void> Manager::inherit_disconnect(const PendingDisconnect& pending, Time now) {
  const bool is_our_address = std::ranges::any_of(interfaces_, [&](const Interface& interface) {
    return interface.gid == pending.address.source && interface.port == pending.address.port;
  });
  if (!is_our_address) {
    cm_.count_inherited_refused();
    return fail(Errc::kAddressNotFound, "not an address of this host");
  }
  VB_TRY_VOID(cm_.inherit({.address = {.path = pending.address},
                           .local_id = pending.local_comm_id,
                           .remote_id = pending.remote_comm_id,
                           .local_qpn = pending.local_qpn,
                           .remote_qpn = pending.remote_qpn,
                           .packet_life = pending.packet_life_time},
                          now));
  drain_cm(now);
  return {};
}

PendingDisconnect Manager::pending_disconnect_of(const Id& id) const {
  const auto view = cm_.view(id.endpoint);
  if (!view) return {};
  return {.address = id.path.address,
          .local_comm_id = view->local_comm_id,
          .remote_comm_id = view->remote_comm_id,
          .local_qpn = {id.qpn},
          .remote_qpn = {id.qp.remote_qpn},
          .packet_life_time = id.path.packet_life_time};
}

// Removes an unanswered child from the backlog of its listener.
void Manager::leave_backlog(Id& child) {
  if (child.state != IdState::kRequested) return;
  if (Id* listener = ids_.find(child.listener)) --listener->listening->children;
  child.listener = {};
}

}  // namespace verbena::rdmacm
