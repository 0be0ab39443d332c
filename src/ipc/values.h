#pragma once

#include "link/address.h"
#include "rdmacm/types.h"

// Lists the members of rdmacm's types for archive.h, because rdmacm does not depend on this layer.
namespace verbena::ipc {

void fields(auto& a, rdmacm::SocketAddress& v) {
  a(v.ip, v.port, v.scope, v.family, v.by_gid, v.service);
}

void fields(auto& a, link::Address& v) {
  a(v.link_layer, v.source, v.destination, v.interface, v.source_port, v.flow_label,
    v.traffic_class, v.hop_limit, v.source_lid, v.destination_lid, v.service_level, v.has_grh,
    v.port.device, v.port.number);
}

void fields(auto& a, rdmacm::PathInfo& v) {
  a(v.address, v.sgid_index, v.pkey, v.mtu, v.packet_life_time);
}

void fields(auto& a, rdmacm::ConnParam& v) {
  a(v.private_data, v.private_data_bytes, v.responder_resources, v.initiator_depth, v.flow_control,
    v.retry_count, v.rnr_retry_count, v.srq, v.qpn, v.psn, v.qkey, v.ece_vendor_id, v.ece_options,
    v.alternate, v.alternate_accepted, v.peer_to_peer, v.timeout);
}

void fields(auto& a, rdmacm::Filter& v) { a(v.mask, v.data, v.data_mask); }

void fields(auto& a, rdmacm::QpTransition& v) {
  a(v.path, v.remote_qpn, v.sq_psn, v.rq_psn, v.valid, v.path_mtu, v.responder_resources,
    v.min_rnr_timer, v.peer_rnr_retries, v.initiator_depth, v.ack_timeout, v.retry_count,
    v.rnr_retry_count);
}

void fields(auto& a, rdmacm::PendingDisconnect& v) {
  a(v.address, v.local_comm_id, v.remote_comm_id, v.local_qpn, v.remote_qpn, v.packet_life_time);
}

void fields(auto& a, rdmacm::Event& v) {
  a(v.owner, v.id, v.listen_id, v.kind, v.status, v.port_space, v.qp_type, v.source, v.destination,
    v.path, v.param, v.qp, v.pending_disconnect, v.tries, v.additional_info);
}

}  // namespace verbena::ipc
