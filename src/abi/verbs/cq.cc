#include <infiniband/verbs.h>

#include <algorithm>
#include <climits>
#include <memory>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/verbs/events.h"
#include "abi/verbs/ops.h"

// Implements completion channels and completion queues.

namespace verbena::abi {

EventTargets<Cq>& cqs() {
  static constinit EventTargets<Cq> all;
  return all;
}

namespace {

ibv_wc to_public(const vb_wc& from) {
  ibv_wc wc{};
  wc.wr_id = from.wr_id;
  wc.status = static_cast<ibv_wc_status>(from.status);
  wc.opcode = static_cast<ibv_wc_opcode>(from.opcode);
  wc.vendor_err = from.vendor_err;
  wc.byte_len = from.byte_len;
  if ((from.wc_flags & IBV_WC_WITH_INV) != 0) {
    wc.invalidated_rkey = from.invalidated_rkey;
  } else {
    wc.imm_data = htobe32(from.imm);
  }
  wc.qp_num = from.qp_num;
  wc.src_qp = from.src_qp;
  wc.wc_flags = from.wc_flags;
  wc.pkey_index = from.pkey_index;
  wc.sl = from.sl;
  wc.slid = from.slid;
  wc.dlid_path_bits = from.dlid_path_bits;
  return wc;
}

int poll_cq(ibv_cq* cq, int num_entries, ibv_wc* wc) {
  constexpr int kBatch = 16;
  const vb_handle library_handle = cq_of(cq)->library_handle;
  // NOLINTNEXTLINE: not initialized, because vb_cq_poll() fills it, and zeros would slow each poll
  vb_wc batch[kBatch];
  int stored_count = 0;
  while (stored_count < num_entries) {
    const int wanted_count = std::min(kBatch, num_entries - stored_count);
    const int result = vb_cq_poll(library_handle, wanted_count, batch);
    if (result < 0) return stored_count > 0 ? stored_count : -with_errno(-result);
    for (int i = 0; i < result; ++i) wc[stored_count++] = to_public(batch[i]);
    if (result < wanted_count) break;
  }
  return stored_count;
}

int req_notify_cq(ibv_cq* cq, int solicited_only) {
  return with_errno(vb_cq_arm(cq_of(cq)->library_handle, solicited_only));
}

void change_refcnt(ibv_comp_channel* channel, int change) {
  if (channel == nullptr) return;
  PthreadLock lock(channel->context->mutex);
  channel->refcnt += change;
}

}  // namespace

Cq* make_cq(ibv_context* context, std::uint32_t entries, void* cq_context,
            ibv_comp_channel* channel, std::uint32_t comp_vector) {
  if (entries == 0 || entries > INT_MAX ||
      comp_vector >= static_cast<std::uint32_t>(context->num_comp_vectors)) {
    return null_with(EINVAL);
  }
  Cq* cq = nullptr;
  const int error = guarded([&] {
    auto owned = std::make_unique<Cq>();
    cq = owned.get();
    const std::uint64_t cookie = cqs().add(std::move(owned));
    if (cookie == 0) return ENOMEM;
    cq->cookie = cookie;
    const vb_handle channel_handle =
        channel != nullptr ? static_cast<CompChannel*>(channel)->library_handle : 0;
    if (int create_error = vb_cq_create(context_of(context).library_handle, &entries,
                                        channel_handle, cookie, &cq->library_handle)) {
      cqs().remove(cookie);
      return create_error;
    }
    cq->cqe = static_cast<int>(entries);
    return 0;
  });
  if (error != 0) return null_with(error);
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->handle = low_bits(cq->library_handle);
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  change_refcnt(channel, 1);
  return cq;
}

void set_cq_ops(ibv_context_ops& ops) {
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
}

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  std::unique_ptr<CompChannel> channel(new (std::nothrow) CompChannel{});
  if (!channel) return null_with(ENOMEM);
  if (int error = vb_channel_create(&channel->library_handle, &channel->fd))
    return null_with(error);
  channel->context = context;
  return channel.release();
}

VB_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  {
    PthreadLock lock(channel->context->mutex);
    if (channel->refcnt != 0) return with_errno(EBUSY);
  }
  auto* self = static_cast<CompChannel*>(channel);
  if (int error = vb_channel_destroy(self->library_handle)) return with_errno(error);
  delete self;
  return 0;
}

VB_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context,
                                ibv_comp_channel* channel, int comp_vector) {
  if (cqe < 1 || comp_vector < 0) return null_with(EINVAL);
  Cq* const cq = make_cq(context, static_cast<std::uint32_t>(cqe), cq_context, channel,
                         static_cast<std::uint32_t>(comp_vector));
  return cq != nullptr ? ibv_cq_ex_to_cq(cq) : nullptr;
}

VB_EXPORT int ibv_resize_cq(ibv_cq* cq, int cqe) {
  if (cqe < 1) return with_errno(EINVAL);
  if (int error = check_handles(*cq_of(cq))) return with_errno(error);
  auto entries = static_cast<std::uint32_t>(cqe);
  if (int error = vb_cq_resize(cq_of(cq)->library_handle, &entries)) return with_errno(error);
  cq->cqe = static_cast<int>(entries);
  return 0;
}

VB_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  auto* self = cq_of(cq);
  if (int error = check_handles(*self)) return with_errno(error);
  if (int error = vb_cq_destroy(self->library_handle)) return with_errno(error);
  const auto owned = cqs().remove(self->cookie);
  wait_until_acknowledged(cq->mutex, cq->cond, cq->comp_events_completed,
                          self->comp_events_delivered);
  wait_until_acknowledged(cq->mutex, cq->cond, cq->async_events_completed,
                          self->async_events_delivered);
  change_refcnt(cq->channel, -1);
  pthread_cond_destroy(&cq->cond);
  pthread_mutex_destroy(&cq->mutex);
  if (self->domain != nullptr) --self->domain->children;
  return 0;
}

VB_EXPORT int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  for (;;) {
    std::uint64_t cookie = 0;
    if (int error = vb_channel_next(static_cast<CompChannel*>(channel)->library_handle, &cookie)) {
      return failed(error);
    }
    if (Cq* found = cqs().count_event(cookie, &Cq::comp_events_delivered)) {
      *cq = ibv_cq_ex_to_cq(found);
      *cq_context = found->cq_context;
      return 0;
    }
  }
}

VB_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned int nevents) {
  if (nevents != 0) acknowledge(cq->mutex, cq->cond, cq->comp_events_completed, nevents);
}
