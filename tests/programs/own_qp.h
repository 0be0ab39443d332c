// Helps programs that create their queue pairs by libibverbs instead of librdmacm.
#pragma once

#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Creates a queue pair and returns its number.  Ends the program if that fails.
static inline uint32_t make_own_qp(struct rdma_cm_id* id) {
  struct ibv_pd* pd = ibv_alloc_pd(id->verbs);
  struct ibv_cq* cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  struct ibv_qp* qp = pd == NULL || cq == NULL ? NULL : ibv_create_qp(pd, &init);
  if (qp == NULL) {
    perror("own_qp.h: creating a queue pair");
    exit(1);
  }
  return qp->qp_num;
}
