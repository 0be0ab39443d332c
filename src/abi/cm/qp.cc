#include <cstring>
#include <utility>

#include "abi/abi.h"
#include "abi/cm/cm.h"
#include "abi/objects.h"
#include "c_api/attributes.h"

// Creates and destroys the QP and the shared receive queue of an id.  Also creates the completion
// queues and channels that the program does not provide.

namespace verbena::abi {
namespace {

int create_cq(CmId& id, std::uint32_t entries, ibv_comp_channel*& channel, ibv_cq*& cq) {
  channel = ibv_create_comp_channel(id.verbs);
  if (channel == nullptr) return errno;
  cq = ibv_create_cq(id.verbs, static_cast<int>(entries), &id, channel, 0);
  return cq != nullptr ? 0 : errno;
}

// Destroys the CQs that rdma_create_qp() has created.  The id never stores CQs of the program.
void destroy_cqs(CmId& id) {
  if (id.recv_cq != nullptr) ibv_destroy_cq(id.recv_cq);
  if (id.send_cq != nullptr && id.send_cq != id.recv_cq) ibv_destroy_cq(id.send_cq);
  if (id.recv_cq_channel != nullptr) ibv_destroy_comp_channel(id.recv_cq_channel);
  if (id.send_cq_channel != nullptr && id.send_cq_channel != id.recv_cq_channel) {
    ibv_destroy_comp_channel(id.send_cq_channel);
  }
  id.recv_cq = id.send_cq = nullptr;
  id.recv_cq_channel = id.send_cq_channel = nullptr;
}

int create_cqs(CmId& id, ibv_qp_init_attr_ex& attr) {
  if (attr.recv_cq == nullptr && id.recv_cq == nullptr && attr.cap.max_recv_wr != 0) {
    if (int error = create_cq(id, attr.cap.max_recv_wr, id.recv_cq_channel, id.recv_cq)) {
      return error;
    }
  }
  if (attr.send_cq == nullptr && id.send_cq == nullptr && attr.cap.max_send_wr != 0) {
    if (int error = create_cq(id, attr.cap.max_send_wr, id.send_cq_channel, id.send_cq)) {
      return error;
    }
  }
  if (attr.send_cq == nullptr) attr.send_cq = id.send_cq;
  if (attr.recv_cq == nullptr) attr.recv_cq = id.recv_cq;
  // A work queue without entries also needs a CQ, so it uses the CQ of the other work queue.
  if (attr.send_cq == nullptr) attr.send_cq = attr.recv_cq;
  if (attr.recv_cq == nullptr) attr.recv_cq = attr.send_cq;
  return 0;
}

int modify_state(Qp& qp, ibv_qp_state state, int mask) {
  vb_qp_attr attr{};
  attr.qp_state = state;
  return vb_qp_modify(qp.library_handle, &attr, static_cast<std::uint32_t>(mask | IBV_QP_STATE));
}

// Moves a datagram QP from INIT to RTS at once, because it does not wait for a connection.
int make_ready(Qp& qp) {
  vb_qp_attr current{};
  vb_qp_init init{};
  if (int error = vb_qp_query(qp.library_handle, &current, &init)) return error;
  if (current.qp_state == IBV_QPS_INIT) {
    if (int error = modify_state(qp, IBV_QPS_RTR, 0)) return error;
    if (int error = modify_state(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN)) return error;
  }
  return 0;
}

int attach_to_id(CmId& id, Qp& qp) {
  if (int error = vb_cm_id_set_qp(id.library_handle, qp.library_handle)) return error;
  id.library_qp = qp.library_handle;
  qp.cm_id = id.library_handle;  // so that ibv_destroy_qp() detaches the QP from the id first
  if (qp.qp_base.qp_type == IBV_QPT_UD) {
    if (int error = make_ready(qp)) return error;
  }
  refresh_state(qp);
  return 0;
}

int create_qp(CmId& id, ibv_qp_init_attr_ex& attr) {
  if (id.qp != nullptr || id.verbs == nullptr) return EINVAL;
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr.pd == nullptr) {
    if (id.pd == nullptr) return EINVAL;
    attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
    attr.pd = id.pd;
  }
  if (attr.pd->context != id.verbs) return EINVAL;
  const auto differ = [](const ibv_cq* a, const ibv_cq* b) { return a && b && a != b; };
  if (attr.srq == nullptr) attr.srq = id.srq;
  if (differ(id.recv_cq, attr.recv_cq) || differ(id.send_cq, attr.send_cq)) return EINVAL;
  if (int error = create_cqs(id, attr)) {
    destroy_cqs(id);
    return error;
  }
  ibv_qp* qp = ibv_create_qp_ex(id.verbs, &attr);
  if (qp == nullptr) {
    const int error = errno;
    destroy_cqs(id);
    return error;
  }
  if (int error = attach_to_id(id, *qp_of(qp))) {
    ibv_destroy_qp(qp);
    destroy_cqs(id);
    return error;
  }
  id.pd = qp->pd;
  cm_ids().with(id.cookie, [&](CmId& one) { one.qp = qp; });  // see cm_refresh_qp()
  return 0;
}

}  // namespace

int cm_update_qp(CmId& id) {
  if (id.qp != nullptr) {
    auto* qp = qp_of(id.qp);
    const bool is_attached = qp->library_handle == id.library_qp && qp->cm_id == id.library_handle;
    return is_attached ? 0 : attach_to_id(id, *qp);
  }
  if (id.library_qp == 0) return 0;
  id.library_qp = 0;
  return vb_cm_id_set_qp(id.library_handle, 0);
}

void cm_refresh_qp(std::uint64_t cookie) {
  cm_ids().with(cookie, [](CmId& id) {
    if (id.qp != nullptr) refresh_state(*qp_of(id.qp));
  });
}

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT int rdma_create_qp_ex(rdma_cm_id* id, ibv_qp_init_attr_ex* qp_init_attr) {
  auto& self = *static_cast<CmId*>(id);
  cm_mark_used(self);
  if (int error = create_qp(self, *qp_init_attr)) return failed(error);
  return 0;
}

VB_EXPORT int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* qp_init_attr) {
  ibv_qp_init_attr_ex attr{};
  // Both structures begin with the same members.
  std::memcpy(static_cast<void*>(&attr), qp_init_attr, sizeof *qp_init_attr);
  attr.comp_mask = IBV_QP_INIT_ATTR_PD;
  attr.pd = pd != nullptr ? pd : id->pd;
  const int result = rdma_create_qp_ex(id, &attr);
  std::memcpy(qp_init_attr, &attr, sizeof *qp_init_attr);
  return result;
}

VB_EXPORT int rdma_create_srq_ex(rdma_cm_id* id, ibv_srq_init_attr_ex* attr) {
  if (id->srq != nullptr || id->verbs == nullptr) return failed(EINVAL);
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || attr->pd == nullptr) {
    if (id->pd == nullptr) return failed(EINVAL);
    attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    attr->pd = id->pd;
  }
  id->srq = ibv_create_srq_ex(id->verbs, attr);
  if (id->srq == nullptr) return -1;
  if (id->pd == nullptr) id->pd = attr->pd;
  return 0;
}

VB_EXPORT int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* attr) {
  ibv_srq_init_attr_ex wanted{};
  wanted.srq_context = attr->srq_context;
  wanted.attr = attr->attr;
  wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  wanted.srq_type = IBV_SRQT_BASIC;
  wanted.pd = pd;
  const int result = rdma_create_srq_ex(id, &wanted);
  attr->attr = wanted.attr;
  return result;
}

VB_EXPORT void rdma_destroy_srq(rdma_cm_id* id) {
  if (id->srq != nullptr) ibv_destroy_srq(id->srq);
  id->srq = nullptr;
}

VB_EXPORT void rdma_destroy_qp(rdma_cm_id* id) {
  auto& self = *static_cast<CmId*>(id);
  ibv_qp* qp = nullptr;
  cm_ids().with(self.cookie, [&](CmId& one) { qp = std::exchange(one.qp, nullptr); });
  if (qp != nullptr) ibv_destroy_qp(qp);
  self.library_qp = 0;
  destroy_cqs(self);
}

VB_EXPORT int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* qp_attr, int* qp_attr_mask) {
  auto& self = *static_cast<CmId*>(id);
  cm_mark_used(self);
  vb_qp_attr attr{};
  attr.qp_state = qp_attr->qp_state;
  std::uint32_t mask = 0;
  if (int error = vb_cm_init_qp_attr(self.library_handle, &attr, &mask)) {
    return failed(error);
  }
  *qp_attr = verbena::c_api::from_c_api(attr);
  *qp_attr_mask = static_cast<int>(mask);
  return 0;
}
