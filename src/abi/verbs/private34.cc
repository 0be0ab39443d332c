#include "abi/abi.h"

// Defines symbols that Debian's provider libraries need in libibverbs.  libmlx5 and libefa resolve
// all of them when they are loaded, and perftest, UCX and libfabric are linked with these
// libraries.  They never find a device that they support.  So they call only
// verbs_register_driver_34(), from their constructors.  The header of these functions is not
// public.  The definitions here take no arguments: with the C calling convention, a caller may pass
// arguments that a function ignores.

using namespace verbena::abi;

#define VB_UNIMPLEMENTED(name) \
  VB_EXPORT int name() { return EOPNOTSUPP; }

// clang-format off
VB_UNIMPLEMENTED(execute_ioctl)
VB_UNIMPLEMENTED(ibv_cmd_advise_mr)
VB_UNIMPLEMENTED(ibv_cmd_alloc_dm)
VB_UNIMPLEMENTED(ibv_cmd_alloc_mw)
VB_UNIMPLEMENTED(ibv_cmd_alloc_pd)
VB_UNIMPLEMENTED(ibv_cmd_attach_mcast)
VB_UNIMPLEMENTED(ibv_cmd_close_xrcd)
VB_UNIMPLEMENTED(ibv_cmd_create_ah)
VB_UNIMPLEMENTED(ibv_cmd_create_counters)
VB_UNIMPLEMENTED(ibv_cmd_create_cq)
VB_UNIMPLEMENTED(ibv_cmd_create_cq_ex)
VB_UNIMPLEMENTED(ibv_cmd_create_flow)
VB_UNIMPLEMENTED(ibv_cmd_create_flow_action_esp)
VB_UNIMPLEMENTED(ibv_cmd_create_qp)
VB_UNIMPLEMENTED(ibv_cmd_create_qp_ex)
VB_UNIMPLEMENTED(ibv_cmd_create_qp_ex2)
VB_UNIMPLEMENTED(ibv_cmd_create_rwq_ind_table)
VB_UNIMPLEMENTED(ibv_cmd_create_srq)
VB_UNIMPLEMENTED(ibv_cmd_create_srq_ex)
VB_UNIMPLEMENTED(ibv_cmd_create_wq)
VB_UNIMPLEMENTED(ibv_cmd_dealloc_mw)
VB_UNIMPLEMENTED(ibv_cmd_dealloc_pd)
VB_UNIMPLEMENTED(ibv_cmd_dereg_mr)
VB_UNIMPLEMENTED(ibv_cmd_destroy_ah)
VB_UNIMPLEMENTED(ibv_cmd_destroy_counters)
VB_UNIMPLEMENTED(ibv_cmd_destroy_cq)
VB_UNIMPLEMENTED(ibv_cmd_destroy_flow)
VB_UNIMPLEMENTED(ibv_cmd_destroy_flow_action)
VB_UNIMPLEMENTED(ibv_cmd_destroy_qp)
VB_UNIMPLEMENTED(ibv_cmd_destroy_rwq_ind_table)
VB_UNIMPLEMENTED(ibv_cmd_destroy_srq)
VB_UNIMPLEMENTED(ibv_cmd_destroy_wq)
VB_UNIMPLEMENTED(ibv_cmd_detach_mcast)
VB_UNIMPLEMENTED(ibv_cmd_free_dm)
VB_UNIMPLEMENTED(ibv_cmd_get_context)
VB_UNIMPLEMENTED(ibv_cmd_modify_cq)
VB_UNIMPLEMENTED(ibv_cmd_modify_flow_action_esp)
VB_UNIMPLEMENTED(ibv_cmd_modify_qp)
VB_UNIMPLEMENTED(ibv_cmd_modify_qp_ex)
VB_UNIMPLEMENTED(ibv_cmd_modify_srq)
VB_UNIMPLEMENTED(ibv_cmd_modify_wq)
VB_UNIMPLEMENTED(ibv_cmd_open_qp)
VB_UNIMPLEMENTED(ibv_cmd_open_xrcd)
VB_UNIMPLEMENTED(ibv_cmd_poll_cq)
VB_UNIMPLEMENTED(ibv_cmd_post_recv)
VB_UNIMPLEMENTED(ibv_cmd_post_send)
VB_UNIMPLEMENTED(ibv_cmd_post_srq_recv)
VB_UNIMPLEMENTED(ibv_cmd_query_context)
VB_UNIMPLEMENTED(ibv_cmd_query_device_any)
VB_UNIMPLEMENTED(ibv_cmd_query_mr)
VB_UNIMPLEMENTED(ibv_cmd_query_port)
VB_UNIMPLEMENTED(ibv_cmd_query_qp)
VB_UNIMPLEMENTED(ibv_cmd_query_srq)
VB_UNIMPLEMENTED(ibv_cmd_read_counters)
VB_UNIMPLEMENTED(ibv_cmd_reg_dm_mr)
VB_UNIMPLEMENTED(ibv_cmd_reg_dmabuf_mr)
VB_UNIMPLEMENTED(ibv_cmd_reg_mr)
VB_UNIMPLEMENTED(ibv_cmd_req_notify_cq)
VB_UNIMPLEMENTED(ibv_cmd_rereg_mr)
VB_UNIMPLEMENTED(ibv_cmd_resize_cq)
// clang-format on

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): not our names
VB_EXPORT void* _verbs_init_and_alloc_context() { return null_with(EOPNOTSUPP); }
VB_EXPORT void* verbs_open_device() { return null_with(EOPNOTSUPP); }
VB_EXPORT unsigned int __ioctl_final_num_attrs() { return 0; }
VB_EXPORT void verbs_init_cq() {}
VB_EXPORT void verbs_set_ops() {}
VB_EXPORT void verbs_uninit_context() {}
VB_EXPORT void __verbs_log() {}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

// The constructors of the provider libraries call this: their drivers have no device here.
VB_EXPORT void verbs_register_driver_34() {}

extern "C" {
extern bool verbs_allow_disassociate_destroy;
[[gnu::visibility("default")]] bool verbs_allow_disassociate_destroy = false;
}
