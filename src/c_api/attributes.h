#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>

#include "verbena/c_api.h"

// Converts attributes of QPs and address handles, and receive requests, between the structures of
// <infiniband/verbs.h> and those of the C API (verbena/c_api.h).
namespace verbena::c_api {

// Both structures have the same layout: see abi/layout.cc.
inline const vb_sge* to_c_api(const ibv_sge* list) { return reinterpret_cast<const vb_sge*>(list); }

inline vb_recv_wr to_c_api(const ibv_recv_wr& wr) {
  return {.wr_id = wr.wr_id,
          .sg_list = to_c_api(wr.sg_list),
          .num_sge = static_cast<std::uint32_t>(wr.num_sge)};
}

inline vb_ah_attr to_c_api(const ibv_ah_attr& attr) {
  vb_ah_attr out{};
  std::memcpy(out.dgid, attr.grh.dgid.raw, sizeof out.dgid);
  out.flow_label = attr.grh.flow_label;
  out.sgid_index = attr.grh.sgid_index;
  out.hop_limit = attr.grh.hop_limit;
  out.traffic_class = attr.grh.traffic_class;
  out.is_global = attr.is_global != 0 ? 1 : 0;
  out.port_num = attr.port_num;
  out.sl = attr.sl;
  out.src_path_bits = attr.src_path_bits;
  out.dlid = attr.dlid;
  return out;
}

inline ibv_ah_attr from_c_api(const vb_ah_attr& attr) {
  ibv_ah_attr out{};
  std::memcpy(out.grh.dgid.raw, attr.dgid, sizeof attr.dgid);
  out.grh.flow_label = attr.flow_label;
  out.grh.sgid_index = attr.sgid_index;
  out.grh.hop_limit = attr.hop_limit;
  out.grh.traffic_class = attr.traffic_class;
  out.dlid = attr.dlid;
  out.sl = attr.sl;
  out.src_path_bits = attr.src_path_bits;
  out.is_global = attr.is_global;
  out.port_num = attr.port_num;
  return out;
}

inline vb_qp_cap to_c_api(const ibv_qp_cap& cap) {
  return {.max_send_wr = cap.max_send_wr,
          .max_recv_wr = cap.max_recv_wr,
          .max_send_sge = cap.max_send_sge,
          .max_recv_sge = cap.max_recv_sge,
          .max_inline_data = cap.max_inline_data};
}

inline ibv_qp_cap from_c_api(const vb_qp_cap& cap) {
  return {.max_send_wr = cap.max_send_wr,
          .max_recv_wr = cap.max_recv_wr,
          .max_send_sge = cap.max_send_sge,
          .max_recv_sge = cap.max_recv_sge,
          .max_inline_data = cap.max_inline_data};
}

// Reads only the members that `mask` names, because programs leave the others uninitialised.
inline vb_qp_attr to_c_api(const ibv_qp_attr& attr, int mask) {
  vb_qp_attr out{};
  const auto has = [mask](int bit) { return (mask & bit) != 0; };
  if (has(IBV_QP_STATE)) out.qp_state = attr.qp_state;
  if (has(IBV_QP_CUR_STATE)) out.cur_qp_state = attr.cur_qp_state;
  if (has(IBV_QP_PATH_MTU)) out.path_mtu = attr.path_mtu;
  if (has(IBV_QP_PATH_MIG_STATE)) out.path_mig_state = attr.path_mig_state;
  if (has(IBV_QP_QKEY)) out.qkey = attr.qkey;
  if (has(IBV_QP_RQ_PSN)) out.rq_psn = attr.rq_psn;
  if (has(IBV_QP_SQ_PSN)) out.sq_psn = attr.sq_psn;
  if (has(IBV_QP_DEST_QPN)) out.dest_qp_num = attr.dest_qp_num;
  if (has(IBV_QP_ACCESS_FLAGS)) out.qp_access_flags = attr.qp_access_flags;
  if (has(IBV_QP_CAP)) out.cap = to_c_api(attr.cap);
  if (has(IBV_QP_AV)) out.ah = to_c_api(attr.ah_attr);
  if (has(IBV_QP_ALT_PATH)) {
    out.alt_ah = to_c_api(attr.alt_ah_attr);
    out.alt_port_num = attr.alt_port_num;
    out.alt_timeout = attr.alt_timeout;
    out.alt_pkey_index = attr.alt_pkey_index;
  }
  if (has(IBV_QP_PKEY_INDEX)) out.pkey_index = attr.pkey_index;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC)) out.max_rd_atomic = attr.max_rd_atomic;
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC)) out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  if (has(IBV_QP_MIN_RNR_TIMER)) out.min_rnr_timer = attr.min_rnr_timer;
  if (has(IBV_QP_PORT)) out.port_num = attr.port_num;
  if (has(IBV_QP_TIMEOUT)) out.timeout = attr.timeout;
  if (has(IBV_QP_RETRY_CNT)) out.retry_cnt = attr.retry_cnt;
  if (has(IBV_QP_RNR_RETRY)) out.rnr_retry = attr.rnr_retry;
  if (has(IBV_QP_EN_SQD_ASYNC_NOTIFY)) out.en_sqd_async_notify = attr.en_sqd_async_notify;
  return out;
}

inline ibv_qp_attr from_c_api(const vb_qp_attr& attr) {
  ibv_qp_attr out{};
  out.qp_state = static_cast<ibv_qp_state>(attr.qp_state);
  out.cur_qp_state = static_cast<ibv_qp_state>(attr.cur_qp_state);
  out.path_mtu = static_cast<ibv_mtu>(attr.path_mtu);
  out.path_mig_state = static_cast<ibv_mig_state>(attr.path_mig_state);
  out.qkey = attr.qkey;
  out.rq_psn = attr.rq_psn;
  out.sq_psn = attr.sq_psn;
  out.dest_qp_num = attr.dest_qp_num;
  out.qp_access_flags = attr.qp_access_flags;
  out.cap = from_c_api(attr.cap);
  out.ah_attr = from_c_api(attr.ah);
  out.alt_ah_attr = from_c_api(attr.alt_ah);
  out.alt_port_num = attr.alt_port_num;
  out.alt_timeout = attr.alt_timeout;
  out.alt_pkey_index = attr.alt_pkey_index;
  out.pkey_index = attr.pkey_index;
  out.max_rd_atomic = attr.max_rd_atomic;
  out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  out.min_rnr_timer = attr.min_rnr_timer;
  out.port_num = attr.port_num;
  out.timeout = attr.timeout;
  out.retry_cnt = attr.retry_cnt;
  out.rnr_retry = attr.rnr_retry;
  out.en_sqd_async_notify = attr.en_sqd_async_notify;
  out.sq_draining = attr.sq_draining;
  return out;
}

}  // namespace verbena::c_api
