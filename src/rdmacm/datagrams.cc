// Implements ids for datagrams: SIDR resolves the QP of a port (vol1 12.11, annex A11.2).  As on
// Linux, a rejected request ends with UNREACHABLE and the status of the peer.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdmacm/manager.h"
#include "rdmacm/private_data.h"
#include "rdmacm/rules.h"
#include "wire/rdma_ip_cm.h"

namespace verbena::rdmacm {

using wire::cm::SidrStatus;

Result<void> Manager::connect_datagrams(IdHandle handle, Id& id, const ConnParam& param, Time now) {
  const auto data = VB_TRY(private_data(param, connect_private_bytes(id.qp_type, id.source)));
  if (param.peer_to_peer || param.alternate.address.source != Gid{}) {
    return fail(Errc::kNotSupported, "datagrams have no alternate paths and no peer to peer");
  }
  cm::ResolveRequest request{.address = mad_address(id),
                             .service_id = service_of(id),
                             .pkey = {id.path.pkey},
                             .give_up_after = give_up_after(param),
                             .round_trip = round_trip(id)};
  write_private_data(id, data, request.private_data);
  id.resolution = VB_TRY(cm_.sidr().resolve(request, handle.value, now));
  id.qpn = param.qpn;
  id.state = IdState::kConnecting;
  drain_cm(now);
  return {};
}

Result<void> Manager::accept_datagrams(Id& id, const ConnParam& param, Time now) {
  const auto data = VB_TRY(private_data(param, kAcceptDatagramPrivateBytes));
  VB_TRY_VOID(cm_.sidr().answer(id.resolution,
                                {.status = SidrStatus::kValid,
                                 .qpn = {param.qpn},
                                 .qkey = {param.qkey != 0 ? param.qkey : kDatagramQkey},
                                 .ece = {param.ece_vendor_id, param.ece_options},
                                 .private_data = data},
                                now));
  id.qpn = param.qpn;
  leave_backlog(id);
  id.state = IdState::kConnected;
  drain_cm(now);
  return {};
}

Result<void> Manager::reject_datagrams(Id& id, std::span<const std::byte> private_data, Time now) {
  VB_TRY_VOID(cm_.sidr().answer(
      id.resolution, {.status = SidrStatus::kRejected, .private_data = private_data}, now));
  leave_backlog(id);
  id.state = IdState::kFailed;
  drain_cm(now);
  return {};
}

void Manager::on(const cm::SidrReqReceived& request, Time now) {
  const std::span<const std::byte> data = request.req.private_data;
  mad::Address address = request.address;
  // Without a GRH neither the packet nor the SIDR_REQ carries the GIDs.  Ours is that of the port.
  if (!address.path.carries_gids()) address.path.source = gid_of(address.path.port);
  const auto child = make_child({.listener = {request.cookie},
                                 .service_id = request.req.service_id,
                                 .private_data = data,
                                 .address = address,
                                 .packet_address = request.address,
                                 .qp_type = kQpTypeUd});
  if (!child) {
    // The backlog may have space when the peer repeats its SIDR_REQ.
    if (child.error() == ChildError::kLimitReached)
      return (void)cm_.sidr().drop(request.resolution);
    const auto status = child.error() == ChildError::kNotForThisHost
                            ? SidrStatus::kRejected
                            : SidrStatus::kServiceIdNotSupported;
    return (void)cm_.sidr().answer(request.resolution, {.status = status}, now);
  }
  Id& id = *ids_.find(*child);
  id.resolution = request.resolution;
  (void)cm_.sidr().set_cookie(request.resolution, child->value);
  id.path = {
      .address = address.path, .sgid_index = sgid_index(address), .pkey = request.req.pkey.value};
  if (!address.path.is_infiniband()) id.path.address.traffic_class = id.tos;
  Event connect = event(*child, id, EventKind::kConnectRequest);
  connect.listen_id = id.listener;
  set_private_data(connect.param, data.subspan(id.has_header() ? wire::kRdmaIpCmHeaderBytes : 0));
  emit(connect);
}

void Manager::on(const cm::SidrRepReceived& response, Time) {
  const IdHandle handle{response.cookie};
  Id* id = ids_.find(handle);
  if (id == nullptr) return;
  const auto& rep = response.rep;
  const bool valid = rep.status == SidrStatus::kValid;
  id->state = valid ? IdState::kConnected : IdState::kFailed;
  Event event = this->event(handle, *id, valid ? EventKind::kEstablished : EventKind::kUnreachable,
                            std::to_underlying(rep.status));
  if (valid) {
    id->qp.remote_qpn = rep.qpn.value;
    event.param.qpn = rep.qpn.value;
    event.param.qkey = rep.qkey.value;
    event.param.ece_vendor_id = response.ece.vendor_id;
    event.param.ece_options = response.ece.options;
  }
  set_private_data(event.param, rep.private_data);
  emit(event);
}

void Manager::on(const cm::SidrUnreachable& unreachable, Time) {
  const IdHandle handle{unreachable.cookie};
  Id* id = ids_.find(handle);
  if (id == nullptr) return;
  id->state = IdState::kFailed;
  Event event = this->event(handle, *id, EventKind::kUnreachable, -ETIMEDOUT);
  event.tries = unreachable.tries;
  emit(event);
}

}  // namespace verbena::rdmacm
