#include <rdma/rdma_verbs.h>

#include "abi/abi.h"
#include "abi/cm/cm.h"

// Implements endpoints.  In one call, rdma_create_ep() creates a synchronous id, and either binds
// it, or resolves its address and route and creates its QP.

namespace verbena::abi {
namespace {

constexpr int kResolveMs = 2000;

int prepare_listener(CmId& id, const rdma_addrinfo& res, ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (rdma_bind_addr(&id, res.ai_src_addr) != 0) return -1;
  if (pd != nullptr) id.pd = pd;
  if (attr != nullptr) {
    id.request_qp = *attr;
    id.request_qp->qp_type = id.qp_type;
  }
  return 0;
}

int prepare_connector(CmId& id, const rdma_addrinfo& res, ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (rdma_resolve_addr(&id, res.ai_src_addr, res.ai_dst_addr, kResolveMs) != 0) return -1;
  if (res.ai_route_len != 0) {
    if (rdma_set_option(&id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res.ai_route, res.ai_route_len) !=
        0) {
      return -1;
    }
    if (id.is_synchronous && cm_wait_for_event(id) != 0) return -1;
  } else if (rdma_resolve_route(&id, kResolveMs) != 0) {
    return -1;
  }
  if (attr == nullptr) return 0;
  attr->qp_type = id.qp_type;
  return rdma_create_qp(&id, pd, attr);
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT int rdma_create_ep(rdma_cm_id** id, rdma_addrinfo* res, ibv_pd* pd,
                             ibv_qp_init_attr* qp_init_attr) {
  rdma_event_channel* channel = rdma_create_event_channel();
  if (channel == nullptr) return -1;
  CmId* new_id = nullptr;
  if (int error = cm_make_id(channel, nullptr, static_cast<rdma_port_space>(res->ai_port_space),
                             static_cast<ibv_qp_type>(res->ai_qp_type), 0, new_id)) {
    rdma_destroy_event_channel(channel);
    return failed(error);
  }
  new_id->is_synchronous = true;
  const int result = (res->ai_flags & RAI_PASSIVE) != 0
                         ? prepare_listener(*new_id, *res, pd, qp_init_attr)
                         : prepare_connector(*new_id, *res, pd, qp_init_attr);
  if (result != 0) {
    const int error = errno;
    rdma_destroy_ep(new_id);
    return failed(error);
  }
  *id = new_id;
  return 0;
}

VB_EXPORT void rdma_destroy_ep(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  rdma_destroy_srq(id);
  rdma_destroy_id(id);
}

VB_EXPORT int rdma_get_request(rdma_cm_id* listen, rdma_cm_id** id) {
  auto& listener = *static_cast<CmId*>(listen);
  if (!listener.is_synchronous) return failed(EINVAL);
  if (listen->event != nullptr) {
    rdma_ack_cm_event(listen->event);
    listen->event = nullptr;
  }
  rdma_cm_event* event = nullptr;
  if (cm_get_step_event(listen->channel, event) != 0) return -1;
  int error = 0;
  if (event->status != 0) {
    error = event->status < 0 ? -event->status : event->status;
  } else if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
    error = EINVAL;
  } else if (listener.request_qp) {
    ibv_qp_init_attr attr = *listener.request_qp;
    if (rdma_create_qp(event->id, listen->pd, &attr) != 0) error = errno;
  }
  if (error != 0) {
    listen->event = event;
    return failed(error);
  }
  *id = event->id;
  event->id->event = event;
  return 0;
}
