#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "abi/abi.h"

// Multicast and enhanced connection establishment: not built.

using namespace verbena::abi;

VB_EXPORT int rdma_join_multicast(rdma_cm_id*, sockaddr*, void*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rdma_join_multicast_ex(rdma_cm_id*, rdma_cm_join_mc_attr_ex*, void*) {
  return failed(EOPNOTSUPP);
}
VB_EXPORT int rdma_leave_multicast(rdma_cm_id*, sockaddr*) { return failed(EOPNOTSUPP); }

VB_EXPORT int rdma_set_local_ece(rdma_cm_id*, ibv_ece*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rdma_get_remote_ece(rdma_cm_id*, ibv_ece*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rdma_reject_ece(rdma_cm_id*, const void*, uint8_t) { return failed(EOPNOTSUPP); }
