// Turns the reports of the connection manager into events of ids.

#include <algorithm>
#include <cerrno>

#include "cm/paths.h"
#include "rdmacm/manager.h"
#include "rdmacm/private_data.h"
#include "wire/loopback.h"
#include "wire/rdma_ip_cm.h"

namespace verbena::rdmacm {

using wire::cm::FailoverAccepted;
using wire::cm::RejReason;

namespace {

IdHandle id_of(std::uint64_t cookie) { return {cookie}; }

}  // namespace

void Manager::drain_cm(Time now) {
  while (auto output = cm_.poll()) {
    if (const auto* send = std::get_if<mad::SendMad>(&*output)) {
      outputs_.push_back(*send);
    } else {
      std::visit([&](const auto& event) { on(event, now); }, std::get<cm::Event>(*output));
    }
  }
}

// Finds the listener of a request: by the service id (then cm has found the listener already), by
// the GID, or by the address in the header.
std::expected<Manager::ListenerMatch, Manager::ChildError> Manager::find_listener(
    const IncomingRequest& request) const {
  const auto space = static_cast<std::uint16_t>(request.service_id.value >> 16);
  const auto port = static_cast<std::uint16_t>(request.service_id.value);
  const auto listener_at = [&](const Gid& ip) {
    return ports_.listener(space, port, ip, request.address.path.interface);
  };
  const auto family_of = [](const Gid& ip) {
    return static_cast<std::uint8_t>(wire::is_ipv4(ip) ? 4 : 6);
  };
  const mad::Address& address = request.address;
  const auto found_by_gid = [&](IdHandle handle) {
    return ListenerMatch{
        .listener = handle,
        .source = {.ip = address.local(),
                   .port = port,
                   .family = family_of(address.local()),
                   .by_gid = true,
                   .service = request.service_id},
        .destination = {
            .ip = address.remote(), .family = family_of(address.remote()), .by_gid = true}};
  };
  if (request.listener) {
    const Id* const id = ids_.find(request.listener);
    const bool is_match =
        id != nullptr && (is_wildcard(id->source) ||
                          (id->source.ip == address.local() &&
                           (id->source.scope == 0 || id->source.scope == address.path.interface)));
    if (!is_match) return std::unexpected(ChildError::kNoListener);
    return found_by_gid(request.listener);
  }
  if (const auto by_gid = listener_at(address.local());
      by_gid && !ids_.find(*by_gid)->has_header()) {
    return found_by_gid(*by_gid);
  }
  const auto header = wire::decode_exact<wire::RdmaIpCmHeader>(
      request.private_data.first<wire::kRdmaIpCmHeaderBytes>());
  const auto ips = wire::addresses(header);
  if (!ips) return std::unexpected(ChildError::kNotForThisHost);
  // On Ethernet the addresses in the header must be those of the packet; otherwise the sender
  // pretends to be another host.  On InfiniBand the packet has GIDs instead of these addresses.
  if (!address.path.is_infiniband() &&
      (ips->destination != address.local() || ips->source != address.remote())) {
    return std::unexpected(ChildError::kNotForThisHost);
  }
  // A program that connects by GID writes the header itself.  So only a packet that this port has
  // sent to itself may name loopback addresses.
  const link::Address& packet = request.packet_address.path;
  const bool names_loopback = wire::is_loopback(ips->source) || wire::is_loopback(ips->destination);
  if (address.path.is_infiniband() &&
      (!is_at_port(ips->destination, address.path.port) ||
       (names_loopback && packet.source_lid != packet.destination_lid))) {
    return std::unexpected(ChildError::kNotForThisHost);
  }
  const auto found = listener_at(ips->destination);
  if (!found || !ids_.find(*found)->has_header()) return std::unexpected(ChildError::kNoListener);
  const std::uint8_t family = family_of(ips->destination);
  return ListenerMatch{
      .listener = *found,
      .source = {.ip = ips->destination, .port = port, .family = family},
      .destination = {.ip = ips->source, .port = header.source_port, .family = family}};
}

// Returns true if the port has the IP address.  Also returns true for each loopback address,
// because the header in a request of the host to itself may have one.
bool Manager::is_at_port(const Gid& ip, PortId port) const {
  return wire::is_loopback(ip) || std::ranges::any_of(interfaces_, [&](const Interface& interface) {
           return interface.port == port && interface.address == ip;
         });
}

std::expected<IdHandle, Manager::ChildError> Manager::make_child(const IncomingRequest& request) {
  const auto match = find_listener(request);
  if (!match) return std::unexpected(match.error());
  Id& listener = *ids_.find(match->listener);
  if (listener.qp_type != request.qp_type) return std::unexpected(ChildError::kNoListener);
  Id::Listening* const listening = listener.listening.get();
  if (listening == nullptr || listening->children >= listening->backlog)
    return std::unexpected(ChildError::kLimitReached);
  const auto added = add_id(listener.owner, listener.port_space, listener.qp_type);
  if (!added) return std::unexpected(ChildError::kLimitReached);

  Id& id = *ids_.find(*added);
  id.state = IdState::kRequested;
  id.listener = match->listener;
  ++listening->children;
  id.source = match->source;
  id.destination = match->destination;
  id.source.scope = id.destination.scope = listener.source.scope;
  id.tos = listener.tos;
  id.ack_timeout = listener.ack_timeout;
  id.bound_to_device = true;
  return *added;
}

// Passes a request to its listener.  If the header has an unknown version or the addresses of
// another host, rejects the request with reason 28, as Linux does: annex A11 leaves the header to
// the consumer of the service id, which is this class.
void Manager::on(const cm::ReqReceived& request, Time now) {
  const auto& req = request.req;
  if (Id* id = ids_.find(id_of(request.cookie)); id != nullptr && id->is_peer_to_peer) {
    id->state = IdState::kRequested;
    apply_request(*id, request);
    return report_request(id_of(request.cookie), *id, id_of(request.cookie), request);
  }
  // A packet without a GRH does not carry the GIDs, but the path in the REQ does.
  const mad::Address address = request.address.path.is_infiniband()
                                   ? cm::address_of(req.primary_path, request.address)
                                   : request.address;
  const auto child = make_child({.listener = id_of(request.cookie),
                                 .service_id = req.service_id,
                                 .private_data = req.private_data,
                                 .address = address,
                                 .packet_address = request.address,
                                 .qp_type = kQpTypeRc});
  if (!child) {
    // The backlog may have space when the peer repeats its REQ.  cm counts the drop.
    if (child.error() == ChildError::kLimitReached) return (void)cm_.drop(request.endpoint);
    const auto reason = child.error() == ChildError::kNotForThisHost ? RejReason::kConsumer
                                                                     : RejReason::kInvalidServiceId;
    (void)cm_.reject(request.endpoint, {.reason = reason}, now);
    return (void)cm_.destroy(request.endpoint, now);
  }
  Id& id = *ids_.find(*child);
  id.endpoint = request.endpoint;
  (void)cm_.set_cookie(request.endpoint, child->value);
  apply_request(id, request);
  report_request(*child, id, id.listener, request);
}

void Manager::report_request(IdHandle handle, const Id& id, IdHandle listener,
                             const cm::ReqReceived& request) {
  const auto& req = request.req;
  Event connect = event(handle, id, EventKind::kConnectRequest);
  connect.listen_id = listener;
  if (connect.source.by_gid)
    connect.source.service = req.service_id;  // a peer-to-peer id is not bound to a service id
  connect.param = {.responder_resources = id.qp.responder_resources,
                   .initiator_depth = id.qp.initiator_depth,
                   .flow_control = req.end_to_end_flow_control,
                   .retry_count = req.retry_count,
                   .rnr_retry_count = req.rnr_retry_count,
                   .srq = req.srq,
                   .qpn = req.local_qpn.value,
                   .psn = req.starting_psn.value,
                   .ece_vendor_id = request.ece.vendor_id,
                   .ece_options = request.ece.options};
  set_private_data(
      connect.param,
      std::span(req.private_data).subspan(id.has_header() ? wire::kRdmaIpCmHeaderBytes : 0));
  if (req.alternate_path != wire::cm::Path{}) {
    connect.param.alternate = path_of(cm::address_of(req.alternate_path, request.address),
                                      req.alternate_path.local_ack_timeout);
  }
  connect.qp = id.qp;
  connect.pending_disconnect = pending_disconnect_of(id);
  emit(connect);
}

// Returns the GID of an InfiniBand port; empty if no address of this host is at the port.
Gid Manager::gid_of(PortId port) const {
  const auto found = std::ranges::find(interfaces_, port, &Interface::port);
  return found == interfaces_.end() ? Gid{} : found->gid;
}

// Returns the GID index of the local address.  A packet's address names the interface only if the
// address is link-local.
std::uint32_t Manager::sgid_index(const mad::Address& address) const {
  const auto found = std::ranges::find_if(interfaces_, [&](const Interface& interface) {
    return interface.port == address.path.port && interface.gid == address.local() &&
           (address.path.interface == 0 || interface.index == address.path.interface);
  });
  return found == interfaces_.end() ? 0 : found->sgid_index;
}

// Sets the path of an id and the values of its QP to those of the REQ.
void Manager::apply_request(Id& id, const cm::ReqReceived& request) {
  const auto& req = request.req;
  const auto& address = request.address;
  id.is_loopback = req.local_ca_guid == config_.cm.ca_guid;
  const std::uint8_t ack_timeout = req.primary_path.local_ack_timeout;
  // On Ethernet the path is that of the packet.  On InfiniBand it is the path in the REQ, which may
  // differ from that of the packet, for example in SL.
  id.path =
      path_of(address.path.is_infiniband() ? cm::address_of(req.primary_path, address) : address,
              ack_timeout);
  id.path.address.flow_label = req.primary_path.flow_label;
  id.path.pkey = req.pkey.value;
  id.path.mtu = req.path_mtu;
  id.path.address.traffic_class = req.primary_path.traffic_class;
  id.qp = {.path = id.path,
           .remote_qpn = req.local_qpn.value,
           .sq_psn = req.starting_psn.value,
           .rq_psn = random_.next32() & kMask24,
           .valid = 1,
           .path_mtu = req.path_mtu,
           .responder_resources = std::min(req.initiator_depth, config_.depth_max),
           .min_rnr_timer = min_rnr_timer(0),  // accept() tells how often the peer retries
           .initiator_depth = std::min(req.responder_resources, config_.depth_max),
           .ack_timeout = id.ack_timeout != 0 ? id.ack_timeout
                                              : std::max(ack_timeout, config_.ack_timeout_min),
           .retry_count = req.retry_count,
           .rnr_retry_count = req.rnr_retry_count};
}

void Manager::on(const cm::RepReceived& response, Time) {
  const IdHandle handle = id_of(response.cookie);
  Id* id = ids_.find(handle);
  if (id == nullptr) return;
  const auto& rep = response.rep;
  id->state = IdState::kResponded;
  id->qp = {.path = id->path,
            .remote_qpn = rep.local_qpn.value,
            .sq_psn = rep.starting_psn.value,
            .rq_psn = id->qp.rq_psn,
            .valid = 1,
            .path_mtu = id->path.mtu,
            .responder_resources = std::min(id->options.responder_resources, rep.initiator_depth),
            .min_rnr_timer = min_rnr_timer(id->options.rnr_retry_count),
            .peer_rnr_retries = id->options.rnr_retry_count,
            .initiator_depth = std::min(id->options.initiator_depth, rep.responder_resources),
            .ack_timeout = id->qp.ack_timeout,
            .retry_count = id->options.retry_count,
            .rnr_retry_count = rep.rnr_retry_count};
  Event event = this->event(handle, *id, EventKind::kConnectResponse);
  event.param = {.responder_resources = id->qp.responder_resources,
                 .initiator_depth = id->qp.initiator_depth,
                 .flow_control = rep.end_to_end_flow_control,
                 .retry_count = id->options.retry_count,
                 .rnr_retry_count = rep.rnr_retry_count,
                 .srq = rep.srq,
                 .qpn = rep.local_qpn.value,
                 .psn = rep.starting_psn.value,
                 .ece_vendor_id = response.ece.vendor_id,
                 .ece_options = response.ece.options,
                 .alternate_accepted =
                     id->options.alternate && rep.failover_accepted == FailoverAccepted::kAccepted};
  if (id->options.alternate) event.param.alternate = *id->options.alternate;
  set_private_data(event.param, rep.private_data);
  event.qp = id->qp;
  event.pending_disconnect = pending_disconnect_of(*id);
  emit(event);
}

void Manager::on(const cm::Established& established, Time) {
  const IdHandle handle = id_of(established.cookie);
  Id* id = ids_.find(handle);
  if (id == nullptr) return;
  id->state = IdState::kConnected;
  Event event = this->event(handle, *id, EventKind::kEstablished);
  set_private_data(event.param, established.private_data);
  event.qp = id->qp;
  emit(event);
}

void Manager::on(const cm::Rejected& rejected, Time) {
  const IdHandle handle = id_of(rejected.cookie);
  Id* id = ids_.find(handle);
  if (id == nullptr) return;
  leave_backlog(*id);
  id->state = IdState::kFailed;
  Event event = this->event(handle, *id, EventKind::kRejected,
                            static_cast<std::int32_t>(rejected.rej.reason));
  set_private_data(event.param, rejected.rej.private_data);
  const auto info = wire::cm::reject_info(rejected.rej);
  event.additional_info.assign(info.begin(), info.end());
  emit(event);
}

void Manager::on(const cm::Unreachable& unreachable, Time) {
  const IdHandle handle = id_of(unreachable.cookie);
  Id* id = ids_.find(handle);
  if (id == nullptr) return;
  id->state = IdState::kFailed;
  Event event = this->event(handle, *id, EventKind::kUnreachable, -ETIMEDOUT);
  event.tries = unreachable.tries;
  emit(event);
}

void Manager::on(const cm::Disconnected& disconnected, Time) {
  const IdHandle handle = id_of(disconnected.cookie);
  Id* id = ids_.find(handle);
  if (id == nullptr) return;
  id->state = IdState::kDisconnected;
  std::int32_t status = 0;
  if (disconnected.cause == cm::Disconnected::Cause::kSilence) status = -ETIMEDOUT;
  if (disconnected.cause == cm::Disconnected::Cause::kReset) status = -ECONNRESET;
  Event event = this->event(handle, *id, EventKind::kDisconnected, status);
  set_private_data(event.param, disconnected.private_data);
  emit(event);
}

void Manager::on(const cm::TimewaitExit& exit, Time) {
  const IdHandle handle = id_of(exit.cookie);
  if (const Id* id = ids_.find(handle)) emit(event(handle, *id, EventKind::kTimewaitExit));
}

}  // namespace verbena::rdmacm
