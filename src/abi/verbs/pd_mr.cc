#include <infiniband/verbs.h>

#include <memory>

#include "abi/abi.h"
#include "abi/objects.h"
#include "abi/verbs/ops.h"
#include "c_api/attributes.h"

// Implements protection domains and memory regions.

// <infiniband/verbs.h> defines these names as macros, which choose one of the functions below.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using namespace verbena::abi;

namespace {

ibv_mr* register_mr(ibv_pd* pd, void* addr, size_t length, std::uint64_t iova,
                    unsigned int access) {
  if (int error = check_handles(*static_cast<Pd*>(pd))) return null_with(error);
  std::unique_ptr<Mr> mr(new (std::nothrow) Mr{});
  if (!mr) return null_with(ENOMEM);
  // Drops the optional flags, because a program that sets such a flag also works without it.
  access &= ~static_cast<unsigned int>(IBV_ACCESS_OPTIONAL_RANGE);
  if (int error = vb_mr_register(static_cast<Pd*>(pd)->library_handle, addr, length, iova, access,
                                 &mr->library_handle, &mr->lkey, &mr->rkey)) {
    return null_with(error);
  }
  mr->context = pd->context;
  mr->pd = pd;
  mr->pd_handle = static_cast<Pd*>(pd)->library_handle;
  mr->addr = addr;
  mr->length = length;
  mr->handle = low_bits(mr->library_handle);
  return mr.release();
}

ibv_mr* alloc_null_mr(ibv_pd* pd) {
  if (int error = check_handles(*static_cast<Pd*>(pd))) return null_with(error);
  std::unique_ptr<Mr> mr(new (std::nothrow) Mr{});
  if (!mr) return null_with(ENOMEM);
  if (int error =
          vb_mr_create_null(static_cast<Pd*>(pd)->library_handle, &mr->library_handle, &mr->lkey)) {
    return null_with(error);
  }
  mr->context = pd->context;
  mr->pd = pd;
  mr->pd_handle = static_cast<Pd*>(pd)->library_handle;
  mr->length = SIZE_MAX;
  mr->handle = low_bits(mr->library_handle);
  return mr.release();
}

// Prefetches memory.  Every kind of prefetch only makes the pages present.  All pages are present
// when this function returns, even without IBV_ADVISE_MR_FLAG_FLUSH.
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, std::uint32_t flags, ibv_sge* sg_list,
              std::uint32_t num_sge) {
  if ((flags & ~std::uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0) return with_errno(EINVAL);
  switch (advice) {
    case IBV_ADVISE_MR_ADVICE_PREFETCH:
    case IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE:
    case IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: break;
    default: return with_errno(EOPNOTSUPP);
  }
  if (num_sge == 0) return with_errno(EINVAL);
  if (int error = check_handles(*static_cast<Pd*>(pd))) return with_errno(error);
  return with_errno(vb_mr_prefetch(static_cast<Pd*>(pd)->library_handle,
                                   verbena::c_api::to_c_api(sg_list), num_sge,
                                   advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE ? 1 : 0));
}

}  // namespace

namespace verbena::abi {

void set_memory_ops(verbs_context& verbs) {
  verbs.advise_mr = advise_mr;
  verbs.alloc_null_mr = alloc_null_mr;
}

}  // namespace verbena::abi

VB_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  std::unique_ptr<Pd> pd(new (std::nothrow) Pd{});
  if (!pd) return null_with(ENOMEM);
  if (int error = vb_pd_create(&pd->library_handle)) return null_with(error);
  pd->context = context;
  pd->handle = low_bits(pd->library_handle);
  return pd.release();
}

VB_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  auto* self = static_cast<Pd*>(pd);
  if (int error = check_handles(*self)) return with_errno(error);
  if (self->children != 0) return with_errno(EBUSY);
  if (self->parent != nullptr) {
    --self->parent->children;
    if (self->td != nullptr) --self->td->users;
  } else if (int error = vb_pd_destroy(self->library_handle)) {
    return with_errno(error);
  }
  delete self;
  return 0;
}

VB_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return register_mr(pd, addr, length, reinterpret_cast<std::uintptr_t>(addr),
                     static_cast<unsigned int>(access));
}

VB_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                  int access) {
  return register_mr(pd, addr, length, iova, static_cast<unsigned int>(access));
}

VB_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                   unsigned int access) {
  return register_mr(pd, addr, length, iova, access);
}

VB_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  auto* self = static_cast<Mr*>(mr);
  if (int error = check_handles(*self)) return with_errno(error);
  if (int error = vb_mr_deregister(self->library_handle)) return with_errno(error);
  delete self;
  return 0;
}

namespace {

constexpr int kReregisterFlags =
    IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;

}  // namespace

VB_EXPORT int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length,
                           int access) {
  const auto changes = [flags](int bit) { return (flags & bit) != 0; };
  const bool moves = changes(IBV_REREG_MR_CHANGE_TRANSLATION);
  // Arguments that the flags do not select are not checked, because programs pass any values there.
  if (!changes(IBV_REREG_MR_CHANGE_PD)) pd = nullptr;
  if ((flags & ~kReregisterFlags) != 0 || (changes(IBV_REREG_MR_CHANGE_PD) && pd == nullptr) ||
      (moves && (addr == nullptr || length == 0))) {
    errno = EINVAL;
    return IBV_REREG_MR_ERR_INPUT;
  }
  // ERR_CMD means that the kernel has refused the command.
  int error = check_handles(*static_cast<Mr*>(mr));
  if (error == 0 && pd != nullptr) error = check_handles(*static_cast<Pd*>(pd));
  if (error == 0) {
    error =
        vb_mr_reregister(static_cast<Mr*>(mr)->library_handle, static_cast<std::uint32_t>(flags),
                         pd != nullptr ? static_cast<Pd*>(pd)->library_handle : 0, addr, length,
                         static_cast<std::uint32_t>(access));
  }
  if (error != 0) {
    errno = error;
    return IBV_REREG_MR_ERR_CMD;
  }
  if (changes(IBV_REREG_MR_CHANGE_PD)) {
    mr->pd = pd;
    static_cast<Mr*>(mr)->pd_handle = static_cast<Pd*>(pd)->library_handle;
  }
  if (moves) {
    mr->addr = addr;
    mr->length = length;
  }
  return 0;
}

VB_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  return null_with(EOPNOTSUPP);
}

VB_EXPORT ibv_pd* ibv_import_pd(ibv_context*, uint32_t) { return null_with(EOPNOTSUPP); }
VB_EXPORT void ibv_unimport_pd(ibv_pd*) {}
VB_EXPORT ibv_mr* ibv_import_mr(ibv_pd*, uint32_t) { return null_with(EOPNOTSUPP); }
VB_EXPORT void ibv_unimport_mr(ibv_mr*) {}
VB_EXPORT ibv_dm* ibv_import_dm(ibv_context*, uint32_t) { return null_with(EOPNOTSUPP); }
VB_EXPORT void ibv_unimport_dm(ibv_dm*) {}
