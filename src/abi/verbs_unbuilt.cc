#include <infiniband/verbs.h>

#include "abi/abi.h"
#include "abi/verbs_ops.h"

// Shared receive queues and memory windows: not built.  The operations that the headers call
// without looking must be there all the same.

namespace verbena::abi {
namespace {

int post_srq_recv(ibv_srq*, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  *bad_wr = wr;
  return EOPNOTSUPP;
}
ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) { return null_with(EOPNOTSUPP); }
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; }
int dealloc_mw(ibv_mw*) { return EOPNOTSUPP; }

}  // namespace

void set_unbuilt_ops(ibv_context_ops& ops) {
  ops.post_srq_recv = post_srq_recv;
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
}

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) { return null_with(EOPNOTSUPP); }
VB_EXPORT int ibv_modify_srq(ibv_srq*, ibv_srq_attr*, int) { return EOPNOTSUPP; }
VB_EXPORT int ibv_query_srq(ibv_srq*, ibv_srq_attr*) { return EOPNOTSUPP; }
VB_EXPORT int ibv_destroy_srq(ibv_srq*) { return EOPNOTSUPP; }
