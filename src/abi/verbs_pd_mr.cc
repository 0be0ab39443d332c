#include <infiniband/verbs.h>

#include <memory>

#include "abi/abi.h"
#include "abi/objects.h"

// Protection domains and memory regions.

#undef ibv_reg_mr  // macros of the headers that choose between the functions here
#undef ibv_reg_mr_iova

using namespace verbena::abi;

namespace {

ibv_mr* register_mr(ibv_pd* pd, void* addr, size_t length, std::uint64_t iova,
                    unsigned int access) {
  std::unique_ptr<Mr> mr(new (std::nothrow) Mr{});
  if (!mr) return null_with(ENOMEM);
  // Whoever asks for an optional flag works without it, too.
  access &= ~static_cast<unsigned int>(IBV_ACCESS_OPTIONAL_RANGE);
  if (int error = vb_mr_register(static_cast<Pd*>(pd)->engine, addr, length, iova, access,
                                 &mr->engine, &mr->lkey, &mr->rkey)) {
    return null_with(error);
  }
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = addr;
  mr->length = length;
  mr->handle = low_bits(mr->engine);
  return mr.release();
}

}  // namespace

VB_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  std::unique_ptr<Pd> pd(new (std::nothrow) Pd{});
  if (!pd) return null_with(ENOMEM);
  if (int error = vb_pd_create(&pd->engine)) return null_with(error);
  pd->context = context;
  pd->handle = low_bits(pd->engine);
  return pd.release();
}

VB_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  auto* mine = static_cast<Pd*>(pd);
  if (int error = vb_pd_destroy(mine->engine)) return error;
  delete mine;
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
  auto* mine = static_cast<Mr*>(mr);
  if (int error = vb_mr_deregister(mine->engine)) return error;
  delete mine;
  return 0;
}

// Not built.  The answer says that the old registration is as it was.
VB_EXPORT int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;
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
