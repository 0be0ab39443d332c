#include <infiniband/verbs.h>

#include <memory>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/library.h"
#include "abi/verbs/events.h"
#include "abi/verbs/ops.h"
#include "abi/verbs/wr_builder.h"
#include "c_api/attributes.h"

// Implements queue pairs, and posting to them.

namespace verbena::abi {

EventTargets<Qp>& qps() {
  static constinit EventTargets<Qp> all;
  return all;
}

namespace {

using c_api::from_c_api;
using c_api::to_c_api;

// libverbena refuses a request with these flags (EINVAL).
constexpr std::uint32_t kInvalidFlags = ~0u;

// Requests bind only windows of type 2: ibv_bind_mw() binds windows of type 1.
bool may_bind(const decltype(ibv_send_wr::bind_mw)& bind) {
  return bind.mw != nullptr && bind.mw->type == IBV_MW_TYPE_2 && bind.bind_info.mr != nullptr;
}

// A program chooses the low 8 bits of a type 2 window's R_Key; the upper bits identify the window.
// Drivers ignore the upper bits of the request, so programs may have any values there.
std::uint32_t bound_key(const decltype(ibv_send_wr::bind_mw)& bind) {
  constexpr std::uint32_t kProgramBits = 0xff;
  return (bind.mw->rkey & ~kProgramBits) | (bind.rkey & kProgramBits);
}

}  // namespace

vb_send_wr send_request_of(const ibv_send_wr& wr, bool is_ud) {
  vb_send_wr out{};
  out.wr_id = wr.wr_id;
  out.sg_list = to_c_api(wr.sg_list);
  out.num_sge = static_cast<std::uint32_t>(wr.num_sge);
  out.opcode = wr.opcode;
  out.send_flags = wr.send_flags;
  out.imm = be32toh(wr.imm_data);
  if (is_ud) {
    out.remote_qpn = wr.wr.ud.remote_qpn;
    out.remote_qkey = wr.wr.ud.remote_qkey;
    out.ah = wr.wr.ud.ah != nullptr ? static_cast<const Ah*>(wr.wr.ud.ah)->library_handle : 0;
    return out;
  }
  switch (wr.opcode) {
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      out.remote_addr = wr.wr.atomic.remote_addr;
      out.rkey = wr.wr.atomic.rkey;
      out.compare_add = wr.wr.atomic.compare_add;
      out.swap = wr.wr.atomic.swap;
      break;
    case IBV_WR_LOCAL_INV:
    case IBV_WR_SEND_WITH_INV: out.rkey = wr.invalidate_rkey; break;
    case IBV_WR_BIND_MW:
      if (may_bind(wr.bind_mw)) {
        fill_binding(wr.bind_mw.bind_info, bound_key(wr.bind_mw), out);
      } else {
        out.send_flags = kInvalidFlags;
      }
      break;
    default: out.remote_addr = wr.wr.rdma.remote_addr; out.rkey = wr.wr.rdma.rkey;
  }
  return out;
}

namespace {

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  const auto& self = *qp_of(qp);
  const bool is_ud = qp->qp_type == IBV_QPT_UD;
  for (; wr != nullptr; wr = wr->next) {
    const vb_send_wr request = send_request_of(*wr, is_ud);
    if (int error = vb_post_send(self.library_handle, &request, wr->next != nullptr ? 1 : 0)) {
      *bad_wr = wr;
      return with_errno(error);
    }
  }
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  const vb_handle library_handle = qp_of(qp)->library_handle;
  for (; wr != nullptr; wr = wr->next) {
    const vb_recv_wr request = to_c_api(*wr);
    if (int error = vb_post_recv(library_handle, &request)) {
      *bad_wr = wr;
      return with_errno(error);
    }
  }
  return 0;
}

}  // namespace

void set_qp_ops(ibv_context_ops& ops) {
  ops.post_send = post_send;
  ops.post_recv = post_recv;
}

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (attr->send_cq == nullptr || attr->recv_cq == nullptr) return null_with(EINVAL);
  if (int error =
          check_handles(*static_cast<Pd*>(pd), *cq_of(attr->send_cq), *cq_of(attr->recv_cq)))
    return null_with(error);
  if (attr->srq != nullptr) {
    if (int error = check_handles(*static_cast<Srq*>(attr->srq))) return null_with(error);
  }
  Qp* new_qp = nullptr;
  const int error = guarded([&] {
    auto owned = std::make_unique<Qp>();
    new_qp = owned.get();
    const std::uint64_t cookie = qps().add(std::move(owned));
    if (cookie == 0) return ENOMEM;
    new_qp->cookie = cookie;
    vb_qp_init init{};
    init.context = context_of(pd->context).library_handle;
    init.cookie = cookie;
    init.device = device_of(pd->context);
    init.pd = static_cast<Pd*>(pd)->library_handle;
    init.send_cq = cq_of(attr->send_cq)->library_handle;
    init.recv_cq = cq_of(attr->recv_cq)->library_handle;
    if (attr->srq != nullptr) init.srq = static_cast<Srq*>(attr->srq)->library_handle;
    init.cap = to_c_api(attr->cap);
    init.type = attr->qp_type;
    init.sq_sig_all = attr->sq_sig_all != 0 ? 1 : 0;
    if (int create_error = vb_qp_create(&init, &new_qp->library_handle, &new_qp->qp_base.qp_num)) {
      if (create_error == EHOSTUNREACH) explain_once();  // the port is down
      qps().remove(cookie);
      return create_error;
    }
    attr->cap = from_c_api(init.cap);
    return 0;
  });
  if (error != 0) return null_with(error);
  ibv_qp* const qp = &new_qp->qp_base;
  auto* const domain = static_cast<Pd*>(pd);
  if (domain->parent != nullptr) {
    new_qp->domain = domain;
    ++domain->children;
  }
  qp->context = pd->context;
  qp->qp_context = attr->qp_context;
  qp->pd = pd;
  qp->send_cq = attr->send_cq;
  qp->recv_cq = attr->recv_cq;
  qp->srq = attr->srq;
  qp->handle = low_bits(new_qp->library_handle);
  qp->state = IBV_QPS_RESET;
  qp->qp_type = attr->qp_type;
  pthread_mutex_init(&qp->mutex, nullptr);
  pthread_cond_init(&qp->cond, nullptr);
  return qp;
}

VB_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int attr_mask) {
  if ((attr_mask & IBV_QP_RATE_LIMIT) != 0) return with_errno(EOPNOTSUPP);
  if (int error = check_handles(*qp_of(qp))) return with_errno(error);
  const vb_qp_attr wanted = to_c_api(*attr, attr_mask);
  if (int error =
          vb_qp_modify(qp_of(qp)->library_handle, &wanted, static_cast<std::uint32_t>(attr_mask))) {
    return with_errno(error);
  }
  if ((attr_mask & IBV_QP_STATE) != 0) qp->state = attr->qp_state;
  return 0;
}

VB_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init_attr) {
  if (int error = check_handles(*qp_of(qp))) return with_errno(error);
  vb_qp_attr found{};
  vb_qp_init init{};
  if (int error = vb_qp_query(qp_of(qp)->library_handle, &found, &init)) return with_errno(error);
  *attr = from_c_api(found);
  init_attr->qp_context = qp->qp_context;
  init_attr->send_cq = qp->send_cq;
  init_attr->recv_cq = qp->recv_cq;
  init_attr->srq = qp->srq;
  init_attr->cap = from_c_api(init.cap);
  init_attr->qp_type = qp->qp_type;
  init_attr->sq_sig_all = init.sq_sig_all != 0 ? 1 : 0;
  qp->state = attr->qp_state;
  return 0;
}

VB_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  auto* self = qp_of(qp);
  if (int error = check_handles(*self)) return with_errno(error);
  if (self->cm_id != 0) {
    // fio calls ibv_destroy_qp() for QPs of rdma_create_qp().  The id may be destroyed already, so
    // an error is ignored.
    vb_cm_id_set_qp(self->cm_id, 0);
    self->cm_id = 0;
  }
  if (int error = vb_qp_destroy(self->library_handle)) return with_errno(error);
  const auto owned = qps().remove(self->cookie);
  wait_until_acknowledged(qp->mutex, qp->cond, qp->events_completed, self->async_events_delivered);
  pthread_cond_destroy(&qp->cond);
  pthread_mutex_destroy(&qp->mutex);
  if (self->domain != nullptr) --self->domain->children;
  return 0;
}

// Returns 0: the QP does not guarantee that data arrives in order.
VB_EXPORT int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }

VB_EXPORT int ibv_query_ece(ibv_qp*, ibv_ece*) { return with_errno(EOPNOTSUPP); }
VB_EXPORT int ibv_set_ece(ibv_qp*, ibv_ece*) { return with_errno(EOPNOTSUPP); }

// The LID is not used, because the GID identifies the group.
VB_EXPORT int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
  if (int error = check_handles(*qp_of(qp))) return with_errno(error);
  return with_errno(vb_qp_attach(qp_of(qp)->library_handle, gid->raw, 0));
}
VB_EXPORT int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
  if (int error = check_handles(*qp_of(qp))) return with_errno(error);
  return with_errno(vb_qp_detach(qp_of(qp)->library_handle, gid->raw));
}
