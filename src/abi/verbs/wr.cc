#include <infiniband/verbs.h>

#include <cstring>

#include "abi/abi.h"
#include "abi/objects.h"
#include "abi/verbs/events.h"
#include "abi/verbs/ops.h"
#include "abi/verbs/wr_builder.h"

// Implements posting with ibv_wr_*(): one function begins a request, and other functions set its
// values.

namespace verbena::abi {

Qp::Qp()
    : ibv_qp_ex{},
      library_handle(0),
      cookie(0),
      async_events_delivered(0),
      domain(nullptr),
      cm_id(0) {}
Qp::~Qp() = default;

void WrBuilder::start() {
  mutex_.lock();
  error_ = 0;
  items_.clear();
  sges_.clear();
  bytes_.clear();
}

ibv_send_wr& WrBuilder::add(const ibv_qp_ex& qp, ibv_wr_opcode opcode) {
  Item& item = items_.emplace_back();
  item.first_sge = sges_.size();
  item.first_byte = bytes_.size();
  item.wr.wr_id = qp.wr_id;
  item.wr.send_flags = qp.wr_flags & ~static_cast<unsigned>(IBV_SEND_INLINE);
  item.wr.opcode = opcode;
  return item.wr;
}

void WrBuilder::set_sges(std::span<const ibv_sge> list) {
  if (items_.empty()) return fail(EINVAL);
  if (list.size() > caps_.max_send_sge) return fail(EINVAL);
  Item& item = items_.back();
  sges_.resize(item.first_sge);
  sges_.insert(sges_.end(), list.begin(), list.end());
  item.wr.num_sge = static_cast<int>(list.size());
  item.wr.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
}

void WrBuilder::set_inline(std::span<const ibv_data_buf> buffers) {
  if (items_.empty()) return fail(EINVAL);
  Item& item = items_.back();
  bytes_.resize(item.first_byte);
  for (const ibv_data_buf& buffer : buffers) {
    if (buffer.length > caps_.max_inline_data - (bytes_.size() - item.first_byte)) {
      return fail(EINVAL);
    }
    const auto* from = static_cast<const std::byte*>(buffer.addr);
    bytes_.insert(bytes_.end(), from, from + buffer.length);
  }
  item.byte_count = bytes_.size() - item.first_byte;
  sges_.resize(item.first_sge);
  sges_.emplace_back();  // complete() stores the address of the bytes, which may still move
  item.wr.num_sge = 1;
  item.wr.send_flags |= IBV_SEND_INLINE;
}

void WrBuilder::fail(int error) {
  if (error_ == 0) error_ = error;
}

int WrBuilder::complete(const Qp& qp) {
  if (error_ == 0 && !items_.empty()) fail(guarded([&] { return post_all(qp); }));
  const int error = error_;
  mutex_.unlock();
  return error;
}

int WrBuilder::post_all(const Qp& qp) {
  const bool is_ud = qp.qp_base.qp_type == IBV_QPT_UD;
  requests_.clear();
  for (Item& item : items_) {
    item.wr.sg_list = sges_.data() + item.first_sge;
    if ((item.wr.send_flags & IBV_SEND_INLINE) != 0) {
      item.wr.sg_list[0] = {
          .addr = reinterpret_cast<std::uintptr_t>(bytes_.data() + item.first_byte),
          .length = static_cast<std::uint32_t>(item.byte_count),
          .lkey = 0};
    }
    requests_.push_back(send_request_of(item.wr, is_ud));
  }
  return vb_post_send_list(qp.library_handle, requests_.data(),
                           static_cast<std::uint32_t>(requests_.size()));
}

void WrBuilder::abort() { mutex_.unlock(); }

namespace {

WrBuilder& builder_of(ibv_qp_ex* qp) { return *static_cast<Qp*>(qp)->builder; }

// Begins a request and lets `fill` fill it in.  wr_complete() reports an error.
void add(ibv_qp_ex* qp, ibv_wr_opcode opcode, auto&& fill) {
  WrBuilder& builder = builder_of(qp);
  const int error = guarded([&] {
    fill(builder.add(*qp, opcode));
    return 0;
  });
  if (error != 0) builder.fail(error);
}

// Lets `body` change the newest request.  wr_complete() reports an error.
void change(ibv_qp_ex* qp, auto&& body) {
  WrBuilder& builder = builder_of(qp);
  const int error = guarded([&] {
    body(builder);
    return 0;
  });
  if (error != 0) builder.fail(error);
}

// Returns a function that sets the remote address and key of a request.
auto remote_memory_setter(std::uint32_t rkey, std::uint64_t remote_addr) {
  return [=](ibv_send_wr& wr) { wr.wr.rdma = {.remote_addr = remote_addr, .rkey = rkey}; };
}

void wr_send(ibv_qp_ex* qp) {
  add(qp, IBV_WR_SEND, [](ibv_send_wr&) {});
}
void wr_send_imm(ibv_qp_ex* qp, __be32 imm_data) {
  add(qp, IBV_WR_SEND_WITH_IMM, [&](ibv_send_wr& wr) { wr.imm_data = imm_data; });
}
void wr_send_inv(ibv_qp_ex* qp, std::uint32_t invalidate_rkey) {
  add(qp, IBV_WR_SEND_WITH_INV, [&](ibv_send_wr& wr) { wr.invalidate_rkey = invalidate_rkey; });
}
void wr_rdma_write(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t remote_addr) {
  add(qp, IBV_WR_RDMA_WRITE, remote_memory_setter(rkey, remote_addr));
}
void wr_rdma_write_imm(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t remote_addr,
                       __be32 imm_data) {
  add(qp, IBV_WR_RDMA_WRITE_WITH_IMM, [&](ibv_send_wr& wr) {
    remote_memory_setter(rkey, remote_addr)(wr);
    wr.imm_data = imm_data;
  });
}
void wr_rdma_read(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t remote_addr) {
  add(qp, IBV_WR_RDMA_READ, remote_memory_setter(rkey, remote_addr));
}
void wr_atomic_cmp_swp(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t remote_addr,
                       std::uint64_t compare, std::uint64_t swap) {
  add(qp, IBV_WR_ATOMIC_CMP_AND_SWP, [&](ibv_send_wr& wr) {
    wr.wr.atomic = {.remote_addr = remote_addr, .compare_add = compare, .swap = swap, .rkey = rkey};
  });
}
void wr_atomic_fetch_add(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t remote_addr,
                         std::uint64_t add_value) {
  add(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, [&](ibv_send_wr& wr) {
    wr.wr.atomic = {.remote_addr = remote_addr, .compare_add = add_value, .swap = 0, .rkey = rkey};
  });
}
void wr_atomic_write(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t remote_addr,
                     const void* atomic_wr) {
  add(qp, IBV_WR_ATOMIC_WRITE, remote_memory_setter(rkey, remote_addr));
  change(qp, [&](WrBuilder& builder) {
    const ibv_data_buf value{.addr = const_cast<void*>(atomic_wr), .length = sizeof(std::uint64_t)};
    builder.set_inline({&value, 1});
  });
}
void wr_local_inv(ibv_qp_ex* qp, std::uint32_t invalidate_rkey) {
  add(qp, IBV_WR_LOCAL_INV, [&](ibv_send_wr& wr) { wr.invalidate_rkey = invalidate_rkey; });
}
void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info* bind_info) {
  add(qp, IBV_WR_BIND_MW,
      [&](ibv_send_wr& wr) { wr.bind_mw = {.mw = mw, .rkey = rkey, .bind_info = *bind_info}; });
}

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, std::uint32_t remote_qpn,
                    std::uint32_t remote_qkey) {
  WrBuilder& builder = builder_of(qp);
  ibv_send_wr* const wr = builder.newest();
  if (wr == nullptr) return builder.fail(EINVAL);
  wr->wr.ud = {.ah = ah, .remote_qpn = remote_qpn, .remote_qkey = remote_qkey};
}
void wr_set_sge(ibv_qp_ex* qp, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length) {
  const ibv_sge one{.addr = addr, .length = length, .lkey = lkey};
  change(qp, [&](WrBuilder& builder) { builder.set_sges({&one, 1}); });
}
void wr_set_sge_list(ibv_qp_ex* qp, std::size_t num_sge, const ibv_sge* sg_list) {
  change(qp, [&](WrBuilder& builder) { builder.set_sges({sg_list, num_sge}); });
}
void wr_set_inline_data(ibv_qp_ex* qp, void* addr, std::size_t length) {
  const ibv_data_buf one{.addr = addr, .length = length};
  change(qp, [&](WrBuilder& builder) { builder.set_inline({&one, 1}); });
}
void wr_set_inline_data_list(ibv_qp_ex* qp, std::size_t num_buf, const ibv_data_buf* buf_list) {
  change(qp, [&](WrBuilder& builder) { builder.set_inline({buf_list, num_buf}); });
}

void wr_start(ibv_qp_ex* qp) { builder_of(qp).start(); }
int wr_complete(ibv_qp_ex* qp) {
  return with_errno(builder_of(qp).complete(*static_cast<Qp*>(qp)));
}
void wr_abort(ibv_qp_ex* qp) { builder_of(qp).abort(); }

std::uint64_t ops_of(ibv_qp_type type) {
  constexpr std::uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  constexpr std::uint64_t kWrites = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  constexpr std::uint64_t kWindows = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
  constexpr std::uint64_t kWithResponse =
      IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
      IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE |
      IBV_QP_EX_WITH_SEND_WITH_INV;
  if (type == IBV_QPT_UD) return kSends;
  const std::uint64_t uc_ops = kSends | kWrites | kWindows;
  return type == IBV_QPT_UC ? uc_ops : uc_ops | kWithResponse;
}

void set_operations(ibv_qp_ex& qp, std::uint64_t wanted) {
  const auto wants = [wanted](std::uint64_t flag) { return (wanted & flag) != 0; };
  if (wants(IBV_QP_EX_WITH_RDMA_WRITE)) qp.wr_rdma_write = wr_rdma_write;
  if (wants(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)) qp.wr_rdma_write_imm = wr_rdma_write_imm;
  if (wants(IBV_QP_EX_WITH_SEND)) qp.wr_send = wr_send;
  if (wants(IBV_QP_EX_WITH_SEND_WITH_IMM)) qp.wr_send_imm = wr_send_imm;
  if (wants(IBV_QP_EX_WITH_RDMA_READ)) qp.wr_rdma_read = wr_rdma_read;
  if (wants(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)) qp.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  if (wants(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)) qp.wr_atomic_fetch_add = wr_atomic_fetch_add;
  if (wants(IBV_QP_EX_WITH_LOCAL_INV)) qp.wr_local_inv = wr_local_inv;
  if (wants(IBV_QP_EX_WITH_BIND_MW)) qp.wr_bind_mw = wr_bind_mw;
  if (wants(IBV_QP_EX_WITH_SEND_WITH_INV)) qp.wr_send_inv = wr_send_inv;
  if (wants(IBV_QP_EX_WITH_ATOMIC_WRITE)) qp.wr_atomic_write = wr_atomic_write;
  if (qp.qp_base.qp_type == IBV_QPT_UD) qp.wr_set_ud_addr = wr_set_ud_addr;
  qp.wr_set_sge = wr_set_sge;
  qp.wr_set_sge_list = wr_set_sge_list;
  qp.wr_set_inline_data = wr_set_inline_data;
  qp.wr_set_inline_data_list = wr_set_inline_data_list;
  qp.wr_start = wr_start;
  qp.wr_complete = wr_complete;
  qp.wr_abort = wr_abort;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  constexpr std::uint32_t kKnown =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  const auto has = [attr](std::uint32_t bit) { return (attr->comp_mask & bit) != 0; };
  if ((attr->comp_mask & ~kKnown) != 0) return null_with(EOPNOTSUPP);
  if (!has(IBV_QP_INIT_ATTR_PD) || attr->pd == nullptr || attr->pd->context != context) {
    return null_with(EINVAL);
  }
  if (has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr->create_flags != 0) return null_with(EOPNOTSUPP);
  const bool has_builder = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
  if (has_builder && (attr->send_ops_flags & ~ops_of(attr->qp_type)) != 0)
    return null_with(EOPNOTSUPP);

  ibv_qp_init_attr basic{};
  std::memcpy(&basic, attr, sizeof basic);  // *attr begins with the same members
  ibv_qp* const qp = ibv_create_qp(attr->pd, &basic);
  if (qp == nullptr) return nullptr;
  attr->cap = basic.cap;
  if (!has_builder) return qp;
  Qp& self = *qp_of(qp);
  if (int error = guarded([&] {
        self.builder = std::make_unique<WrBuilder>(basic.cap);
        return 0;
      })) {
    ibv_destroy_qp(qp);
    return null_with(error);
  }
  set_operations(self, attr->send_ops_flags);
  return qp;
}

}  // namespace

void set_qp_ex_ops(verbs_context& verbs) { verbs.create_qp_ex = create_qp_ex; }

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  Qp* const self = qp_of(qp);
  return self->builder ? self : nullptr;
}
