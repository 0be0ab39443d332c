#include <infiniband/verbs.h>

#include "abi/abi.h"
#include "abi/verbs_ops.h"

// Memory windows: not built.  The operations that the headers call
// without looking must be there all the same.

namespace verbena::abi {
namespace {

ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) { return null_with(EOPNOTSUPP); }
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; }
int dealloc_mw(ibv_mw*) { return EOPNOTSUPP; }

}  // namespace

void set_unbuilt_ops(ibv_context_ops& ops) {
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
}

}  // namespace verbena::abi
