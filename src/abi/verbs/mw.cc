#include <infiniband/verbs.h>

#include <memory>

#include "abi/abi.h"
#include "abi/objects.h"
#include "abi/verbs/ops.h"

// Implements memory windows.

namespace verbena::abi {
namespace {

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (int error = check_handles(*static_cast<Pd*>(pd))) return null_with(error);
  std::unique_ptr<Mw> mw(new (std::nothrow) Mw{});
  if (!mw) return null_with(ENOMEM);
  if (int error = vb_mw_create(static_cast<Pd*>(pd)->library_handle, type, &mw->library_handle,
                               &mw->rkey)) {
    return null_with(error);
  }
  mw->context = pd->context;
  mw->pd = pd;
  mw->pd_handle = static_cast<Pd*>(pd)->library_handle;
  mw->type = type;
  mw->handle = low_bits(mw->library_handle);
  return mw.release();
}

int dealloc_mw(ibv_mw* mw) {
  auto* self = static_cast<Mw*>(mw);
  if (int error = check_handles(*self)) return with_errno(error);
  if (int error = vb_mw_destroy(self->library_handle)) return with_errno(error);
  delete self;
  return 0;
}

// Binds a window of type 1.  The library chooses the new R_Key, and stores it in the window for the
// program.
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  const ibv_mw_bind_info& info = bind->bind_info;
  const vb_handle pd_handle = static_cast<Pd*>(qp->pd)->library_handle;
  if (mw->type != IBV_MW_TYPE_1) return with_errno(EINVAL);
  if (info.mr == nullptr && info.length != 0) return with_errno(EINVAL);
  if (static_cast<Mw*>(mw)->pd_handle != pd_handle) return with_errno(EPERM);
  if (info.mr != nullptr && static_cast<Mr*>(info.mr)->pd_handle != pd_handle) {
    return with_errno(EPERM);
  }
  const std::uint32_t rkey = ibv_inc_rkey(mw->rkey);
  vb_send_wr request{};
  request.wr_id = bind->wr_id;
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = bind->send_flags;
  fill_binding(info, rkey, request);
  if (int error = vb_post_send(qp_of(qp)->library_handle, &request, 0)) return with_errno(error);
  mw->rkey = rkey;
  return 0;
}

}  // namespace

void fill_binding(const ibv_mw_bind_info& info, std::uint32_t rkey, vb_send_wr& to) {
  to.rkey = rkey;
  to.bind_addr = info.addr;
  to.bind_length = info.length;
  to.bind_lkey = info.mr != nullptr ? info.mr->lkey : 0;
  to.bind_access = info.mw_access_flags;
}

void set_mw_ops(ibv_context_ops& ops) {
  ops.alloc_mw = alloc_mw;
  ops.dealloc_mw = dealloc_mw;
  ops.bind_mw = bind_mw;
}

}  // namespace verbena::abi
