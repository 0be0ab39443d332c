#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstddef>

#include "abi/objects.h"

// Checks that the public structures have the layout of rdma-core 44 on x86-64, because programs
// were compiled with that layout.  The tool pahole has printed these numbers from Debian's
// libraries.  This file contains no code: compiling fails if a structure has another layout.

#if defined(__x86_64__)

namespace {

#define VB_SIZE(type, bytes) static_assert(sizeof(type) == (bytes))
#define VB_AT(type, member, offset) static_assert(offsetof(type, member) == (offset))

// clang-format off
VB_SIZE(ibv_device, 664);
VB_AT(ibv_device, _ops, 0);
VB_AT(ibv_device, node_type, 16);
VB_AT(ibv_device, transport_type, 20);
VB_AT(ibv_device, name, 24);
VB_AT(ibv_device, dev_name, 88);
VB_AT(ibv_device, dev_path, 152);
VB_AT(ibv_device, ibdev_path, 408);
VB_SIZE(ibv_context, 328);
VB_AT(ibv_context, device, 0);
VB_AT(ibv_context, ops, 8);
VB_AT(ibv_context, cmd_fd, 264);
VB_AT(ibv_context, async_fd, 268);
VB_AT(ibv_context, num_comp_vectors, 272);
VB_AT(ibv_context, mutex, 280);
VB_AT(ibv_context, abi_compat, 320);
VB_SIZE(verbs_context, 648);
VB_AT(verbs_context, query_port, 0);
VB_AT(verbs_context, advise_mr, 8);
VB_AT(verbs_context, alloc_null_mr, 16);
VB_AT(verbs_context, read_counters, 24);
VB_AT(verbs_context, attach_counters_point_flow, 32);
VB_AT(verbs_context, create_counters, 40);
VB_AT(verbs_context, destroy_counters, 48);
VB_AT(verbs_context, reg_dm_mr, 56);
VB_AT(verbs_context, alloc_dm, 64);
VB_AT(verbs_context, free_dm, 72);
VB_AT(verbs_context, modify_flow_action_esp, 80);
VB_AT(verbs_context, destroy_flow_action, 88);
VB_AT(verbs_context, create_flow_action_esp, 96);
VB_AT(verbs_context, modify_qp_rate_limit, 104);
VB_AT(verbs_context, alloc_parent_domain, 112);
VB_AT(verbs_context, dealloc_td, 120);
VB_AT(verbs_context, alloc_td, 128);
VB_AT(verbs_context, modify_cq, 136);
VB_AT(verbs_context, post_srq_ops, 144);
VB_AT(verbs_context, destroy_rwq_ind_table, 152);
VB_AT(verbs_context, create_rwq_ind_table, 160);
VB_AT(verbs_context, destroy_wq, 168);
VB_AT(verbs_context, modify_wq, 176);
VB_AT(verbs_context, create_wq, 184);
VB_AT(verbs_context, query_rt_values, 192);
VB_AT(verbs_context, create_cq_ex, 200);
VB_AT(verbs_context, priv, 208);
VB_AT(verbs_context, query_device_ex, 216);
VB_AT(verbs_context, ibv_destroy_flow, 224);
VB_AT(verbs_context, ABI_placeholder2, 232);
VB_AT(verbs_context, ibv_create_flow, 240);
VB_AT(verbs_context, ABI_placeholder1, 248);
VB_AT(verbs_context, open_qp, 256);
VB_AT(verbs_context, create_qp_ex, 264);
VB_AT(verbs_context, get_srq_num, 272);
VB_AT(verbs_context, create_srq_ex, 280);
VB_AT(verbs_context, open_xrcd, 288);
VB_AT(verbs_context, close_xrcd, 296);
VB_AT(verbs_context, _ABI_placeholder3, 304);
VB_AT(verbs_context, sz, 312);
VB_AT(verbs_context, context, 320);
VB_SIZE(ibv_qp, 160);
VB_AT(ibv_qp, context, 0);
VB_AT(ibv_qp, qp_context, 8);
VB_AT(ibv_qp, pd, 16);
VB_AT(ibv_qp, send_cq, 24);
VB_AT(ibv_qp, recv_cq, 32);
VB_AT(ibv_qp, srq, 40);
VB_AT(ibv_qp, handle, 48);
VB_AT(ibv_qp, qp_num, 52);
VB_AT(ibv_qp, state, 56);
VB_AT(ibv_qp, qp_type, 60);
VB_AT(ibv_qp, mutex, 64);
VB_AT(ibv_qp, cond, 104);
VB_AT(ibv_qp, events_completed, 152);
VB_SIZE(ibv_qp_ex, 352);
VB_AT(ibv_qp_ex, qp_base, 0);
VB_AT(ibv_qp_ex, comp_mask, 160);
VB_AT(ibv_qp_ex, wr_id, 168);
VB_AT(ibv_qp_ex, wr_flags, 176);
VB_AT(ibv_qp_ex, wr_atomic_cmp_swp, 184);
VB_AT(ibv_qp_ex, wr_atomic_fetch_add, 192);
VB_AT(ibv_qp_ex, wr_bind_mw, 200);
VB_AT(ibv_qp_ex, wr_local_inv, 208);
VB_AT(ibv_qp_ex, wr_rdma_read, 216);
VB_AT(ibv_qp_ex, wr_rdma_write, 224);
VB_AT(ibv_qp_ex, wr_rdma_write_imm, 232);
VB_AT(ibv_qp_ex, wr_send, 240);
VB_AT(ibv_qp_ex, wr_send_imm, 248);
VB_AT(ibv_qp_ex, wr_send_inv, 256);
VB_AT(ibv_qp_ex, wr_send_tso, 264);
VB_AT(ibv_qp_ex, wr_set_ud_addr, 272);
VB_AT(ibv_qp_ex, wr_set_xrc_srqn, 280);
VB_AT(ibv_qp_ex, wr_set_inline_data, 288);
VB_AT(ibv_qp_ex, wr_set_inline_data_list, 296);
VB_AT(ibv_qp_ex, wr_set_sge, 304);
VB_AT(ibv_qp_ex, wr_set_sge_list, 312);
VB_AT(ibv_qp_ex, wr_start, 320);
VB_AT(ibv_qp_ex, wr_complete, 328);
VB_AT(ibv_qp_ex, wr_abort, 336);
VB_AT(ibv_qp_ex, wr_atomic_write, 344);
VB_SIZE(ibv_cq, 128);
VB_AT(ibv_cq, context, 0);
VB_AT(ibv_cq, channel, 8);
VB_AT(ibv_cq, cq_context, 16);
VB_AT(ibv_cq, handle, 24);
VB_AT(ibv_cq, cqe, 28);
VB_AT(ibv_cq, mutex, 32);
VB_AT(ibv_cq, cond, 72);
VB_AT(ibv_cq, comp_events_completed, 120);
VB_AT(ibv_cq, async_events_completed, 124);
VB_SIZE(ibv_cq_ex, 288);
VB_AT(ibv_cq_ex, context, 0);
VB_AT(ibv_cq_ex, channel, 8);
VB_AT(ibv_cq_ex, cq_context, 16);
VB_AT(ibv_cq_ex, handle, 24);
VB_AT(ibv_cq_ex, cqe, 28);
VB_AT(ibv_cq_ex, mutex, 32);
VB_AT(ibv_cq_ex, cond, 72);
VB_AT(ibv_cq_ex, comp_events_completed, 120);
VB_AT(ibv_cq_ex, async_events_completed, 124);
VB_AT(ibv_cq_ex, comp_mask, 128);
VB_AT(ibv_cq_ex, status, 132);
VB_AT(ibv_cq_ex, wr_id, 136);
VB_AT(ibv_cq_ex, start_poll, 144);
VB_AT(ibv_cq_ex, next_poll, 152);
VB_AT(ibv_cq_ex, end_poll, 160);
VB_AT(ibv_cq_ex, read_opcode, 168);
VB_AT(ibv_cq_ex, read_vendor_err, 176);
VB_AT(ibv_cq_ex, read_byte_len, 184);
VB_AT(ibv_cq_ex, read_imm_data, 192);
VB_AT(ibv_cq_ex, read_qp_num, 200);
VB_AT(ibv_cq_ex, read_src_qp, 208);
VB_AT(ibv_cq_ex, read_wc_flags, 216);
VB_AT(ibv_cq_ex, read_slid, 224);
VB_AT(ibv_cq_ex, read_sl, 232);
VB_AT(ibv_cq_ex, read_dlid_path_bits, 240);
VB_AT(ibv_cq_ex, read_completion_ts, 248);
VB_AT(ibv_cq_ex, read_cvlan, 256);
VB_AT(ibv_cq_ex, read_flow_tag, 264);
VB_AT(ibv_cq_ex, read_tm_info, 272);
VB_AT(ibv_cq_ex, read_completion_wallclock_ns, 280);
VB_SIZE(ibv_srq, 128);
VB_AT(ibv_srq, context, 0);
VB_AT(ibv_srq, srq_context, 8);
VB_AT(ibv_srq, pd, 16);
VB_AT(ibv_srq, handle, 24);
VB_AT(ibv_srq, mutex, 32);
VB_AT(ibv_srq, cond, 72);
VB_AT(ibv_srq, events_completed, 120);
VB_SIZE(ibv_pd, 16);
VB_AT(ibv_pd, context, 0);
VB_AT(ibv_pd, handle, 8);
VB_SIZE(ibv_mr, 48);
VB_AT(ibv_mr, context, 0);
VB_AT(ibv_mr, pd, 8);
VB_AT(ibv_mr, addr, 16);
VB_AT(ibv_mr, length, 24);
VB_AT(ibv_mr, handle, 32);
VB_AT(ibv_mr, lkey, 36);
VB_AT(ibv_mr, rkey, 40);
VB_SIZE(ibv_mw, 32);
VB_AT(ibv_mw, context, 0);
VB_AT(ibv_mw, pd, 8);
VB_AT(ibv_mw, rkey, 16);
VB_AT(ibv_mw, handle, 20);
VB_AT(ibv_mw, type, 24);
VB_SIZE(ibv_ah, 24);
VB_AT(ibv_ah, context, 0);
VB_AT(ibv_ah, pd, 8);
VB_AT(ibv_ah, handle, 16);
VB_SIZE(ibv_comp_channel, 16);
VB_AT(ibv_comp_channel, context, 0);
VB_AT(ibv_comp_channel, fd, 8);
VB_AT(ibv_comp_channel, refcnt, 12);
VB_SIZE(ibv_wq, 152);
VB_AT(ibv_wq, context, 0);
VB_AT(ibv_wq, wq_context, 8);
VB_AT(ibv_wq, pd, 16);
VB_AT(ibv_wq, cq, 24);
VB_AT(ibv_wq, wq_num, 32);
VB_AT(ibv_wq, handle, 36);
VB_AT(ibv_wq, state, 40);
VB_AT(ibv_wq, wq_type, 44);
VB_AT(ibv_wq, post_recv, 48);
VB_AT(ibv_wq, mutex, 56);
VB_AT(ibv_wq, cond, 96);
VB_AT(ibv_wq, events_completed, 144);
VB_AT(ibv_wq, comp_mask, 148);
VB_SIZE(ibv_xrcd, 8);
VB_AT(ibv_xrcd, context, 0);
VB_SIZE(ibv_dm, 32);
VB_AT(ibv_dm, context, 0);
VB_AT(ibv_dm, memcpy_to_dm, 8);
VB_AT(ibv_dm, memcpy_from_dm, 16);
VB_AT(ibv_dm, comp_mask, 24);
VB_AT(ibv_dm, handle, 28);
VB_SIZE(ibv_td, 8);
VB_AT(ibv_td, context, 0);
VB_SIZE(ibv_rwq_ind_table, 24);
VB_AT(ibv_rwq_ind_table, context, 0);
VB_AT(ibv_rwq_ind_table, ind_tbl_handle, 8);
VB_AT(ibv_rwq_ind_table, ind_tbl_num, 12);
VB_AT(ibv_rwq_ind_table, comp_mask, 16);
VB_SIZE(ibv_context_ops, 256);
VB_AT(ibv_context_ops, _compat_query_device, 0);
VB_AT(ibv_context_ops, _compat_query_port, 8);
VB_AT(ibv_context_ops, _compat_alloc_pd, 16);
VB_AT(ibv_context_ops, _compat_dealloc_pd, 24);
VB_AT(ibv_context_ops, _compat_reg_mr, 32);
VB_AT(ibv_context_ops, _compat_rereg_mr, 40);
VB_AT(ibv_context_ops, _compat_dereg_mr, 48);
VB_AT(ibv_context_ops, alloc_mw, 56);
VB_AT(ibv_context_ops, bind_mw, 64);
VB_AT(ibv_context_ops, dealloc_mw, 72);
VB_AT(ibv_context_ops, _compat_create_cq, 80);
VB_AT(ibv_context_ops, poll_cq, 88);
VB_AT(ibv_context_ops, req_notify_cq, 96);
VB_AT(ibv_context_ops, _compat_cq_event, 104);
VB_AT(ibv_context_ops, _compat_resize_cq, 112);
VB_AT(ibv_context_ops, _compat_destroy_cq, 120);
VB_AT(ibv_context_ops, _compat_create_srq, 128);
VB_AT(ibv_context_ops, _compat_modify_srq, 136);
VB_AT(ibv_context_ops, _compat_query_srq, 144);
VB_AT(ibv_context_ops, _compat_destroy_srq, 152);
VB_AT(ibv_context_ops, post_srq_recv, 160);
VB_AT(ibv_context_ops, _compat_create_qp, 168);
VB_AT(ibv_context_ops, _compat_query_qp, 176);
VB_AT(ibv_context_ops, _compat_modify_qp, 184);
VB_AT(ibv_context_ops, _compat_destroy_qp, 192);
VB_AT(ibv_context_ops, post_send, 200);
VB_AT(ibv_context_ops, post_recv, 208);
VB_AT(ibv_context_ops, _compat_create_ah, 216);
VB_AT(ibv_context_ops, _compat_destroy_ah, 224);
VB_AT(ibv_context_ops, _compat_attach_mcast, 232);
VB_AT(ibv_context_ops, _compat_detach_mcast, 240);
VB_AT(ibv_context_ops, _compat_async_event, 248);
VB_SIZE(ibv_device_attr, 232);
VB_SIZE(ibv_device_attr_ex, 400);
VB_SIZE(ibv_port_attr, 52);
VB_SIZE(ibv_gid_entry, 32);
VB_SIZE(ibv_wc, 48);
VB_SIZE(ibv_send_wr, 128);
VB_SIZE(ibv_recv_wr, 32);
VB_SIZE(ibv_qp_attr, 144);
VB_SIZE(ibv_qp_init_attr, 64);
VB_SIZE(ibv_qp_init_attr_ex, 136);
VB_SIZE(ibv_ah_attr, 32);
VB_SIZE(ibv_srq_init_attr, 24);
VB_SIZE(ibv_srq_init_attr_ex, 64);
VB_SIZE(ibv_cq_init_attr_ex, 56);
VB_SIZE(ibv_async_event, 16);
VB_SIZE(ibv_ece, 12);
VB_SIZE(rdma_cm_id, 416);
VB_SIZE(rdma_event_channel, 4);
VB_SIZE(rdma_cm_event, 80);
VB_SIZE(rdma_conn_param, 24);
VB_SIZE(rdma_ud_param, 56);
VB_SIZE(rdma_addrinfo, 96);
VB_SIZE(rdma_addr, 296);
VB_SIZE(rdma_route, 312);
VB_SIZE(rdma_cm_join_mc_attr_ex, 16);
VB_SIZE(rdma_ib_addr, 40);
// clang-format on

// Device::ops must be where rdma-core's own structure verbs_device has its member `ops`.
VB_AT(verbena::abi::Device, ops, 664);
// c_api/attributes.h uses an ibv_sge as a vb_sge.
static_assert(sizeof(ibv_sge) == sizeof(vb_sge) &&
              offsetof(ibv_sge, length) == offsetof(vb_sge, length) &&
              offsetof(ibv_sge, lkey) == offsetof(vb_sge, lkey));

}  // namespace

#endif
