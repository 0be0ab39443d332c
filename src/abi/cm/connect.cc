#include "abi/abi.h"
#include "abi/cm/cm.h"
#include "abi/objects.h"

// Establishes and ends connections.

namespace verbena::abi {
namespace {

// The header of the RDMA IP CM service takes these bytes of the private data of a REQ or SIDR_REQ
// (annex A11).
constexpr std::uint8_t kHeaderBytes = 36;
// These constants limit the private data of messages (vol1 12.6).
constexpr std::uint8_t kConnectBytesMax = 92;
constexpr std::uint8_t kConnectDatagramBytesMax = 216;
constexpr std::uint8_t kAcceptBytesMax = 196;
constexpr std::uint8_t kAcceptDatagramBytesMax = 136;
constexpr std::uint8_t kRejectBytesMax = 148;
// These are reasons of a REJ (vol1 12.6.7.2).
constexpr std::uint32_t kRejectConsumer = 28;
constexpr std::uint32_t kRejectVendorOption = 35;

constexpr std::uint8_t kRetryMax = 7;  // the default of retry_count and of rnr_retry_count

int to_c_api(const CmId& id, const rdma_conn_param* param, std::uint8_t bytes_max,
             vb_conn_param& out) {
  out = {};
  out.responder_resources = RDMA_MAX_RESP_RES;
  out.initiator_depth = RDMA_MAX_INIT_DEPTH;
  out.retry_count = kRetryMax;
  out.rnr_retry_count = kRetryMax;
  if (id.qp != nullptr) {
    out.qp_num = id.qp->qp_num;
    out.srq = id.qp->srq != nullptr ? 1 : 0;
  } else {
    out.ece_vendor_id = id.local_ece.vendor_id;
    out.ece_options = id.local_ece.options;
  }
  if (param == nullptr) return id.qp == nullptr && id.ps == RDMA_PS_TCP ? EINVAL : 0;

  if (param->private_data != nullptr) {
    if (param->private_data_len > bytes_max) return EINVAL;
    out.private_data = param->private_data;
    out.private_data_len = param->private_data_len;
  }
  out.responder_resources = param->responder_resources;
  out.initiator_depth = param->initiator_depth;
  out.flow_control = param->flow_control;
  out.retry_count = param->retry_count;
  out.rnr_retry_count = param->rnr_retry_count;
  if (id.qp == nullptr) {
    out.srq = param->srq;
    out.qp_num = param->qp_num;
  }
  return 0;
}

std::uint8_t connect_bytes_max(const CmId& id) {
  const std::uint8_t bytes_max = is_datagram(id) ? kConnectDatagramBytesMax : kConnectBytesMax;
  const bool has_header = id.route.addr.dst_addr.sa_family != AF_IB;
  return static_cast<std::uint8_t>(bytes_max - (has_header ? kHeaderBytes : 0));
}

int reject(CmId& id, std::uint32_t reason, const void* private_data, std::uint8_t bytes) {
  cm_mark_used(id);
  if (bytes > kRejectBytesMax) return failed(EINVAL);
  if (int error = vb_cm_reject(id.library_handle, reason, private_data, bytes))
    return failed(error);
  return 0;
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT int rdma_connect(rdma_cm_id* id, rdma_conn_param* conn_param) {
  auto& self = *static_cast<CmId*>(id);
  vb_conn_param param{};
  if (int error = to_c_api(self, conn_param, connect_bytes_max(self), param)) {
    return failed(error);
  }
  if (int error = cm_update_qp(self)) return failed(error);
  const bool waits = self.is_synchronous;
  if (int error = vb_cm_connect(self.library_handle, &param)) return failed(error);
  return waits ? cm_wait_for_event(self) : 0;
}

VB_EXPORT int rdma_accept(rdma_cm_id* id, rdma_conn_param* conn_param) {
  auto& self = *static_cast<CmId*>(id);
  cm_mark_used(self);
  vb_conn_param param{};
  const auto bytes_max = is_datagram(self) ? kAcceptDatagramBytesMax : kAcceptBytesMax;
  if (int error = to_c_api(self, conn_param, bytes_max, param)) return failed(error);
  if (int error = cm_update_qp(self)) return failed(error);
  const std::uint64_t cookie = self.cookie;
  const bool waits = self.is_synchronous, expects_event = !is_datagram(self);
  if (int error = vb_cm_accept(self.library_handle, &param)) return failed(error);
  cm_refresh_qp(cookie);
  if (waits && expects_event) return cm_wait_for_event(self);
  if (waits && self.event != nullptr) {  // acknowledge the CONNECT_REQUEST
    rdma_ack_cm_event(self.event);
    self.event = nullptr;
  }
  return 0;
}

VB_EXPORT int rdma_reject(rdma_cm_id* id, const void* private_data, uint8_t private_data_len) {
  return reject(*static_cast<CmId*>(id), kRejectConsumer, private_data, private_data_len);
}

VB_EXPORT int rdma_reject_ece(rdma_cm_id* id, const void* private_data, uint8_t private_data_len) {
  return reject(*static_cast<CmId*>(id), kRejectVendorOption, private_data, private_data_len);
}

VB_EXPORT int rdma_establish(rdma_cm_id* id) {
  if (id->qp != nullptr) return failed(EINVAL);  // libverbena establishes an id with a QP itself
  if (int error = vb_cm_establish(static_cast<CmId*>(id)->library_handle)) return failed(error);
  return 0;
}

VB_EXPORT int rdma_notify(rdma_cm_id* id, ibv_event_type event) {
  if (int error = vb_cm_notify(static_cast<CmId*>(id)->library_handle, event)) return failed(error);
  return 0;
}

VB_EXPORT int rdma_disconnect(rdma_cm_id* id) {
  auto& self = *static_cast<CmId*>(id);
  if (int error = cm_update_qp(self)) return failed(error);
  const std::uint64_t cookie = self.cookie;
  // Datagram ids send no message and get no event.
  const bool waits = self.is_synchronous && !is_datagram(self);
  if (int error = vb_cm_disconnect(self.library_handle)) return failed(error);
  cm_refresh_qp(cookie);
  return waits ? cm_wait_for_event(self) : 0;
}
