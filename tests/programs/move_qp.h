// Helps programs that connect two queue pairs by themselves, without a connection manager.
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                \
  do {                                                                             \
    if (!(what)) {                                                                 \
      fprintf(stderr, "%s:%d: check failed: %s (%s)\n", __FILE__, __LINE__, #what, \
              strerror(errno));                                                    \
      exit(1);                                                                     \
    }                                                                              \
  } while (0)

// Moves a queue pair to INIT, RTR or RTS, with all access rights for the peer.  Ends the program if
// the move fails.
static inline void move_qp(struct ibv_qp* qp, enum ibv_qp_state state, uint32_t peer,
                           union ibv_gid gid) {
  const int rc = qp->qp_type == IBV_QPT_RC;
  struct ibv_qp_attr attr = {
      .qp_state = state,
      .port_num = 1,
      .qp_access_flags =
          IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = peer,
      .max_rd_atomic = 4,
      .max_dest_rd_atomic = 4,
      .min_rnr_timer = 12,
      .timeout = 14,
      .retry_cnt = 7,
      .rnr_retry = 7,
      .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}}};
  int mask = IBV_QP_STATE;
  if (state == IBV_QPS_INIT) mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (state == IBV_QPS_RTR) {
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
  }
  if (state == IBV_QPS_RTS) {
    mask |=
        IBV_QP_SQ_PSN |
        (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
  }
  errno = ibv_modify_qp(qp, &attr, mask);
  CHECK(errno == 0);
}
