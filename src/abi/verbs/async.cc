#include <infiniband/verbs.h>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/verbs/events.h"

// Reports asynchronous events of the device, its port, QPs, CQs and SRQs.

using namespace verbena::abi;

namespace {

enum class About { kDevice, kCq, kQp, kSrq, kUnbuilt };

About about(std::uint32_t type) {
  switch (static_cast<ibv_event_type>(type)) {
    case IBV_EVENT_CQ_ERR: return About::kCq;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: return About::kQp;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: return About::kSrq;
    case IBV_EVENT_WQ_FATAL: return About::kUnbuilt;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE: return About::kDevice;
  }
  return About::kUnbuilt;
}

// Returns false if the object is destroyed, or if its kind is not implemented: then the program
// must not get the event.
bool name_object(const vb_async_event& from, ibv_async_event& event) {
  switch (about(from.type)) {
    case About::kCq:
      if (Cq* cq = cqs().give(from.cookie, &Cq::async_events_given)) {
        event.element.cq = ibv_cq_ex_to_cq(cq);
        return true;
      }
      return false;
    case About::kQp:
      if (Qp* qp = qps().give(from.cookie, &Qp::async_events_given)) {
        event.element.qp = &qp->qp_base;
        return true;
      }
      return false;
    case About::kSrq:
      event.element.srq = srqs().give(from.cookie, &Srq::async_events_given);
      return event.element.srq != nullptr;
    case About::kDevice: event.element.port_num = static_cast<int>(from.port); return true;
    case About::kUnbuilt: break;
  }
  return false;
}

}  // namespace

VB_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  const vb_handle library_handle = context_of(context).library_handle;
  for (;;) {
    vb_async_event next{};
    if (int error = vb_async_next(library_handle, &next)) return failed(error);
    *event = {};
    event->event_type = static_cast<ibv_event_type>(next.type);
    if (name_object(next, *event)) return 0;
  }
}

VB_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  switch (about(event->event_type)) {
    case About::kCq: {
      ibv_cq& cq = *event->element.cq;
      acknowledge(cq.mutex, cq.cond, cq.async_events_completed, 1);
      return;
    }
    case About::kQp: {
      ibv_qp& qp = *event->element.qp;
      acknowledge(qp.mutex, qp.cond, qp.events_completed, 1);
      return;
    }
    case About::kSrq: {
      ibv_srq& srq = *event->element.srq;
      acknowledge(srq.mutex, srq.cond, srq.events_completed, 1);
      return;
    }
    case About::kDevice:
    case About::kUnbuilt: return;
  }
}
