#include <rdma/rdma_cma.h>

#include "abi/abi.h"

// Enhanced connection establishment: not built.

using namespace verbena::abi;

VB_EXPORT int rdma_set_local_ece(rdma_cm_id*, ibv_ece*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rdma_get_remote_ece(rdma_cm_id*, ibv_ece*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rdma_reject_ece(rdma_cm_id*, const void*, uint8_t) { return failed(EOPNOTSUPP); }
