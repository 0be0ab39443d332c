#include <infiniband/verbs.h>

#include <memory>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/verbs/events.h"
#include "abi/verbs/ops.h"
#include "c_api/attributes.h"

// Implements shared receive queues.

namespace verbena::abi {

EventTargets<Srq>& srqs() {
  static constinit EventTargets<Srq> all;
  return all;
}

namespace {

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  const vb_handle library_handle = static_cast<Srq*>(srq)->library_handle;
  for (; wr != nullptr; wr = wr->next) {
    const vb_recv_wr request = verbena::c_api::to_c_api(*wr);
    if (int error = vb_post_srq_recv(library_handle, &request)) {
      *bad_wr = wr;
      return with_errno(error);
    }
  }
  return 0;
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) {
  constexpr std::uint32_t kSupported = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0) return null_with(EINVAL);
  if ((attr->comp_mask & ~kSupported) != 0) return null_with(EOPNOTSUPP);
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 && attr->srq_type != IBV_SRQT_BASIC) {
    return null_with(EOPNOTSUPP);
  }
  if (attr->pd->context != context) return null_with(EINVAL);
  ibv_srq_init_attr basic{.srq_context = attr->srq_context, .attr = attr->attr};
  ibv_srq* const srq = ibv_create_srq(attr->pd, &basic);
  if (srq != nullptr) attr->attr = basic.attr;
  return srq;
}

}  // namespace

void set_srq_ops(verbs_context& verbs) {
  verbs.context.ops.post_srq_recv = post_srq_recv;
  verbs.create_srq_ex = create_srq_ex;
}

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  if (int error = check_handles(*static_cast<Pd*>(pd))) return null_with(error);
  Srq* srq = nullptr;
  const int error = guarded([&] {
    auto owned = std::make_unique<Srq>();
    srq = owned.get();
    const std::uint64_t cookie = srqs().add(std::move(owned));
    if (cookie == 0) return ENOMEM;
    srq->cookie = cookie;
    vb_srq_attr wanted{.max_wr = attr->attr.max_wr, .max_sge = attr->attr.max_sge, .limit = 0};
    if (int create_error = vb_srq_create(context_of(pd->context).library_handle,
                                         static_cast<Pd*>(pd)->library_handle, &wanted, cookie,
                                         &srq->library_handle)) {
      srqs().remove(cookie);
      return create_error;
    }
    attr->attr.max_wr = wanted.max_wr;
    attr->attr.max_sge = wanted.max_sge;
    return 0;
  });
  if (error != 0) return null_with(error);
  srq->context = pd->context;
  srq->srq_context = attr->srq_context;
  srq->pd = pd;
  srq->handle = low_bits(srq->library_handle);
  pthread_mutex_init(&srq->mutex, nullptr);
  pthread_cond_init(&srq->cond, nullptr);
  return srq;
}

VB_EXPORT int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  if (int error = check_handles(*static_cast<Srq*>(srq))) return with_errno(error);
  vb_srq_attr wanted{};
  if ((mask & IBV_SRQ_MAX_WR) != 0) wanted.max_wr = attr->max_wr;
  if ((mask & IBV_SRQ_LIMIT) != 0) wanted.limit = attr->srq_limit;
  return with_errno(vb_srq_modify(static_cast<Srq*>(srq)->library_handle, &wanted,
                                  static_cast<std::uint32_t>(mask)));
}

VB_EXPORT int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  if (int error = check_handles(*static_cast<Srq*>(srq))) return with_errno(error);
  vb_srq_attr found{};
  if (int error = vb_srq_query(static_cast<Srq*>(srq)->library_handle, &found))
    return with_errno(error);
  *attr = {.max_wr = found.max_wr, .max_sge = found.max_sge, .srq_limit = found.limit};
  return 0;
}

VB_EXPORT int ibv_destroy_srq(ibv_srq* srq) {
  auto* self = static_cast<Srq*>(srq);
  if (int error = check_handles(*self)) return with_errno(error);
  if (int error = vb_srq_destroy(self->library_handle)) return with_errno(error);
  const auto owned = srqs().remove(self->cookie);
  wait_until_acknowledged(srq->mutex, srq->cond, srq->events_completed,
                          self->async_events_delivered);
  pthread_cond_destroy(&srq->cond);
  pthread_mutex_destroy(&srq->mutex);
  return 0;
}
