#include <infiniband/verbs.h>

#include <ctime>

#include "abi/abi.h"
#include "abi/verbs/events.h"
#include "abi/verbs/ops.h"

// Implements extended completion queues, and the clock of their time stamps.  A program polls one
// completion at a time and reads each value with a call.

namespace verbena::abi {
namespace {

constexpr std::uint64_t kTimestamps =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

Cq& self_of(ibv_cq_ex* cq) { return *static_cast<Cq*>(cq); }

std::uint64_t now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Measures the offset between the clocks.  Makes the first measurement several times and uses the
// most accurate one, because the thread may lose its processor between reading the two clocks.
void measure(WallClock& clock) {
  constexpr int kTries = 8;
  constexpr std::uint64_t kAccurateNs = 2'000;
  std::uint64_t best[3] = {0, 0, ~std::uint64_t{0}};
  for (int i = 0; i < (clock.is_known() ? 1 : kTries); ++i) {
    const std::uint64_t before = now_ns(CLOCK_MONOTONIC);
    const std::uint64_t wall = now_ns(CLOCK_REALTIME);
    const std::uint64_t after = now_ns(CLOCK_MONOTONIC);
    if (after - before >= best[2] - best[0]) continue;
    best[0] = before;
    best[1] = wall;
    best[2] = after;
    if (after - before < kAccurateNs) break;
  }
  clock.measure(best[0], best[1], best[2]);
}

// Gets the next completion.  ENOENT: the queue is empty.
int next_poll(ibv_cq_ex* cq) {
  Cq& self = self_of(cq);
  const int result = vb_cq_poll(self.library_handle, 1, &self.current);
  if (result <= 0) return result == 0 ? ENOENT : with_errno(-result);
  cq->status = static_cast<ibv_wc_status>(self.current.status);
  cq->wr_id = self.current.wr_id;
  return 0;
}

void end_poll(ibv_cq_ex* cq) {
  Cq& self = self_of(cq);
  if (!self.is_polling) return;  // programs also call end_poll() after start_poll() has failed
  self.is_polling = false;
  if (!self.single_threaded) self.poll_mutex.unlock();
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
  if (attr->comp_mask != 0) return with_errno(EINVAL);
  Cq& self = self_of(cq);
  if (!self.single_threaded) self.poll_mutex.lock();
  self.is_polling = true;
  if (cq->read_completion_wallclock_ns != nullptr) measure(self.wall_clock);
  const int error = next_poll(cq);
  if (error != 0) end_poll(cq);
  return error;
}

ibv_wc_opcode read_opcode(ibv_cq_ex* cq) {
  return static_cast<ibv_wc_opcode>(self_of(cq).current.opcode);
}
std::uint32_t read_vendor_err(ibv_cq_ex* cq) { return self_of(cq).current.vendor_err; }
std::uint32_t read_byte_len(ibv_cq_ex* cq) { return self_of(cq).current.byte_len; }
__be32 read_imm_data(ibv_cq_ex* cq) {
  const vb_wc& wc = self_of(cq).current;
  // ibv_wc_read_invalidated_rkey() of <infiniband/verbs.h> calls this function, too.  It does not
  // convert the R_Key from network order.
  return (wc.wc_flags & IBV_WC_WITH_INV) != 0 ? wc.invalidated_rkey : htobe32(wc.imm);
}
std::uint32_t read_qp_num(ibv_cq_ex* cq) { return self_of(cq).current.qp_num; }
std::uint32_t read_src_qp(ibv_cq_ex* cq) { return self_of(cq).current.src_qp; }
unsigned int read_wc_flags(ibv_cq_ex* cq) { return self_of(cq).current.wc_flags; }
std::uint8_t read_sl(ibv_cq_ex* cq) { return self_of(cq).current.sl; }
std::uint32_t read_slid(ibv_cq_ex* cq) { return self_of(cq).current.slid; }
std::uint8_t read_dlid_path_bits(ibv_cq_ex* cq) { return self_of(cq).current.dlid_path_bits; }
std::uint64_t read_completion_ts(ibv_cq_ex* cq) { return self_of(cq).current.timestamp_ns; }
std::uint64_t read_completion_wallclock_ns(ibv_cq_ex* cq) {
  const Cq& self = self_of(cq);
  return self.wall_clock.at(self.current.timestamp_ns);
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  constexpr std::uint32_t kMask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  if ((attr->comp_mask & ~kMask) != 0) return null_with(EINVAL);
  if ((attr->wc_flags & ~(std::uint64_t{IBV_WC_STANDARD_FLAGS} | kTimestamps)) != 0) {
    return null_with(EOPNOTSUPP);
  }
  const std::uint32_t flags =
      (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? attr->flags : 0;
  if ((flags & ~std::uint32_t{IBV_CREATE_CQ_ATTR_SINGLE_THREADED}) != 0) {
    return null_with(EOPNOTSUPP);
  }
  Pd* domain = nullptr;
  if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0) {
    domain = static_cast<Pd*>(attr->parent_domain);
    if (domain == nullptr || domain->parent == nullptr) return null_with(EINVAL);
  }
  Cq* const cq = make_cq(context, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector);
  if (cq == nullptr) return nullptr;
  cq->single_threaded = flags != 0;
  cq->domain = domain;
  if (domain != nullptr) ++domain->children;
  cq->start_poll = start_poll;
  cq->next_poll = next_poll;
  cq->end_poll = end_poll;
  cq->read_opcode = read_opcode;
  cq->read_vendor_err = read_vendor_err;
  cq->read_wc_flags = read_wc_flags;
  const auto wants = [&](std::uint64_t flag) { return (attr->wc_flags & flag) != 0; };
  if (wants(IBV_WC_EX_WITH_BYTE_LEN)) cq->read_byte_len = read_byte_len;
  if (wants(IBV_WC_EX_WITH_IMM)) cq->read_imm_data = read_imm_data;
  if (wants(IBV_WC_EX_WITH_QP_NUM)) cq->read_qp_num = read_qp_num;
  if (wants(IBV_WC_EX_WITH_SRC_QP)) cq->read_src_qp = read_src_qp;
  if (wants(IBV_WC_EX_WITH_SLID)) cq->read_slid = read_slid;
  if (wants(IBV_WC_EX_WITH_SL)) cq->read_sl = read_sl;
  if (wants(IBV_WC_EX_WITH_DLID_PATH_BITS)) cq->read_dlid_path_bits = read_dlid_path_bits;
  if (wants(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)) cq->read_completion_ts = read_completion_ts;
  if (wants(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)) {
    cq->read_completion_wallclock_ns = read_completion_wallclock_ns;
  }
  return cq;
}

// The device uses the host's monotonic clock.
int query_rt_values(ibv_context*, ibv_values_ex* values) {
  if ((values->comp_mask & ~std::uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) != 0)
    return with_errno(EINVAL);
  if (values->comp_mask != 0) clock_gettime(CLOCK_MONOTONIC, &values->raw_clock);
  return 0;
}

}  // namespace

void set_cq_ex_ops(verbs_context& verbs) {
  verbs.create_cq_ex = create_cq_ex;
  verbs.query_rt_values = query_rt_values;
}

}  // namespace verbena::abi
