#include <infiniband/verbs.h>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/verbs/events.h"

// Reports asynchronous events of the device, its ports, QPs, CQs and SRQs.

using namespace verbena::abi;

namespace {

enum class Subject { kDevice, kCq, kQp, kSrq, kUnimplemented };

Subject subject_of(std::uint32_t type) {
  switch (static_cast<ibv_event_type>(type)) {
    case IBV_EVENT_CQ_ERR: return Subject::kCq;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: return Subject::kQp;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: return Subject::kSrq;
    case IBV_EVENT_WQ_FATAL: return Subject::kUnimplemented;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE: return Subject::kDevice;
  }
  return Subject::kUnimplemented;
}

// Sets the object of an event, and counts the event as delivered.  Returns false if the object is
// destroyed, or if objects of its kind are not implemented: then the program must not get the
// event.
bool set_object(const vb_async_event& from, ibv_async_event& event) {
  switch (subject_of(from.type)) {
    case Subject::kCq:
      if (Cq* cq = cqs().count_event(from.cookie, &Cq::async_events_delivered)) {
        event.element.cq = ibv_cq_ex_to_cq(cq);
        return true;
      }
      return false;
    case Subject::kQp:
      if (Qp* qp = qps().count_event(from.cookie, &Qp::async_events_delivered)) {
        event.element.qp = &qp->qp_base;
        return true;
      }
      return false;
    case Subject::kSrq:
      event.element.srq = srqs().count_event(from.cookie, &Srq::async_events_delivered);
      return event.element.srq != nullptr;
    case Subject::kDevice: event.element.port_num = static_cast<int>(from.port); return true;
    case Subject::kUnimplemented: break;
  }
  return false;
}

}  // namespace

VB_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  const vb_handle library_handle = context_of(context).library_handle;
  for (;;) {
    vb_async_event from{};
    if (int error = vb_async_next(library_handle, &from)) return failed(error);
    *event = {};
    event->event_type = static_cast<ibv_event_type>(from.type);
    if (set_object(from, *event)) return 0;
  }
}

VB_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  switch (subject_of(event->event_type)) {
    case Subject::kCq: {
      ibv_cq& cq = *event->element.cq;
      acknowledge(cq.mutex, cq.cond, cq.async_events_completed, 1);
      return;
    }
    case Subject::kQp: {
      ibv_qp& qp = *event->element.qp;
      acknowledge(qp.mutex, qp.cond, qp.events_completed, 1);
      return;
    }
    case Subject::kSrq: {
      ibv_srq& srq = *event->element.srq;
      acknowledge(srq.mutex, srq.cond, srq.events_completed, 1);
      return;
    }
    case Subject::kDevice:
    case Subject::kUnimplemented: return;
  }
}
