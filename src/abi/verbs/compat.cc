#include <cstdint>

#include "abi/abi.h"

// Implements the interface of libibverbs 1.0, whose structures had another layout, and the old call
// by which a driver registered (IBVERBS_1.1).  No program of today uses these versions, so the
// functions do nothing, and report an error if they can.  With GCC the macro uses
// __attribute__((symver)), because LTO would lose asm(".symver"), and GCC 12 ignores
// [[gnu::symver]] in C++.  Clang has no such attribute.

using namespace verbena::abi;

#ifdef __clang__
#define VB_COMPAT(type, name, version, body)           \
  asm(".symver compat_" #name ", " #name "@" version); \
  VB_EXPORT type compat_##name() body
#else
#define VB_COMPAT(type, name, version, body)                                 \
  VB_EXPORT type compat_##name() __attribute__((symver(#name "@" version))); \
  type compat_##name() body
#endif

// clang-format off
VB_COMPAT(void, ibv_ack_async_event, "IBVERBS_1.0", {})
VB_COMPAT(void, ibv_ack_cq_events, "IBVERBS_1.0", {})
VB_COMPAT(void*, ibv_alloc_pd, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(int, ibv_attach_mcast, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_close_device, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(void*, ibv_create_ah, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(void*, ibv_create_cq, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(void*, ibv_create_qp, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(void*, ibv_create_srq, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(int, ibv_dealloc_pd, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_dereg_mr, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_destroy_ah, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_destroy_cq, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_destroy_qp, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_destroy_srq, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_detach_mcast, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(void, ibv_free_device_list, "IBVERBS_1.0", {})
VB_COMPAT(int, ibv_get_async_event, "IBVERBS_1.0", { return failed(EOPNOTSUPP); })
VB_COMPAT(int, ibv_get_cq_event, "IBVERBS_1.0", { return failed(EOPNOTSUPP); })
VB_COMPAT(std::uint64_t, ibv_get_device_guid, "IBVERBS_1.0", { return 0; })
VB_COMPAT(void*, ibv_get_device_list, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(void*, ibv_get_device_name, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(int, ibv_modify_qp, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_modify_srq, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(void*, ibv_open_device, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(int, ibv_query_device, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_query_gid, "IBVERBS_1.0", { return failed(EOPNOTSUPP); })
VB_COMPAT(int, ibv_query_pkey, "IBVERBS_1.0", { return failed(EOPNOTSUPP); })
VB_COMPAT(int, ibv_query_port, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_query_qp, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(int, ibv_query_srq, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
VB_COMPAT(void*, ibv_reg_mr, "IBVERBS_1.0", { return null_with(EOPNOTSUPP); })
VB_COMPAT(void, ibv_register_driver, "IBVERBS_1.1", {})
VB_COMPAT(int, ibv_resize_cq, "IBVERBS_1.0", { return with_errno(EOPNOTSUPP); })
// clang-format on
