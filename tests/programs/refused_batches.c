// Posts batches with ibv_wr_*(), whose last request is invalid.  ibv_wr_complete() must return an
// error, and must not have executed the requests before it.  Prints "good NAME" for each batch, or
// prints a failure and exits with 1.
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "move_qp.h"

enum { kBytes = 64, kQkey = 0x1111, kMarker = 100 };

static struct ibv_context* device;
static struct ibv_pd *pd, *other_pd;
static struct ibv_cq* cq;
static struct ibv_mr* mr;
static union ibv_gid gid;
static char memory[4][kBytes];  // the source, the target, the local end of READs, and receives

static struct ibv_qp* create_qp(enum ibv_qp_type type, uint64_t operations) {
  struct ibv_qp_init_attr_ex init = {
      .send_cq = cq,
      .recv_cq = cq,
      .qp_type = type,
      .pd = pd,
      .cap = {.max_send_wr = 8,
              .max_recv_wr = 8,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = kBytes},
      .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
      .send_ops_flags = operations};
  struct ibv_qp* qp = ibv_create_qp_ex(device, &init);
  CHECK(qp != NULL);
  return qp;
}

static void write_to_target(struct ibv_qp_ex* qp, uint64_t wr_id) {
  qp->wr_id = wr_id;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory[1]);
  ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory[0], 1);
}
static void send_to(struct ibv_qp_ex* qp, uint64_t wr_id, struct ibv_ah* ah, uint32_t qpn) {
  qp->wr_id = wr_id;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(qp);
  ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory[0], 1);
  if (ah != NULL) ibv_wr_set_ud_addr(qp, ah, qpn, kQkey);
}

// Waits for the next completion of a send.  It must be the marker's, because requests of a queue
// complete in order and the requests before the marker must not have been posted.
static void expect_marker(const char* name) {
  struct ibv_wc wc;
  do {
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0) {
    }
    CHECK(count == 1);
  } while (wc.status == IBV_WC_SUCCESS && (wc.opcode & IBV_WC_RECV) != 0);
  if (wc.wr_id != kMarker) {
    fprintf(stderr, "%s: request %d was executed\n", name, (int)wc.wr_id);
    exit(1);
  }
  CHECK(wc.status == IBV_WC_SUCCESS);
  printf("good %s\n", name);
}

// ---- RC -----------------------------------------------------------------------------------------

static void add_inline_read(struct ibv_qp_ex* qp) {
  ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)memory[2]);
  ibv_wr_set_inline_data(qp, memory[0], 4);
}
static void add_inline_atomic(struct ibv_qp_ex* qp) {
  ibv_wr_atomic_fetch_add(qp, mr->rkey, (uintptr_t)memory[2], 1);
  ibv_wr_set_inline_data(qp, memory[0], 8);
}
static struct ibv_mw* window;
static void bind(struct ibv_qp_ex* qp, enum ibv_mw_type type, struct ibv_mr* region) {
  const struct ibv_mw_bind_info info = {.mr = region,
                                        .addr = (uintptr_t)memory[2],
                                        .length = kBytes,
                                        .mw_access_flags = IBV_ACCESS_REMOTE_READ};
  if (window != NULL) CHECK(ibv_dealloc_mw(window) == 0);
  CHECK((window = ibv_alloc_mw(pd, type)));
  ibv_wr_bind_mw(qp, window, ibv_inc_rkey(window->rkey), &info);
}
static void add_binding_of_type_1(struct ibv_qp_ex* qp) { bind(qp, IBV_MW_TYPE_1, mr); }
static void add_binding_without_region(struct ibv_qp_ex* qp) { bind(qp, IBV_MW_TYPE_2, NULL); }
static void add_unknown_flags(struct ibv_qp_ex* qp) {
  qp->wr_flags = 1u << 30;
  ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory[1]);
  ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory[0], 1);
}
static void add_more_than_the_queue_has(struct ibv_qp_ex* qp) {
  for (int i = 0; i < 8; ++i) write_to_target(qp, 2);
}

static void run_rc(struct ibv_qp_ex* qp, const char* name, void (*add_invalid)(struct ibv_qp_ex*)) {
  memory[0][0] = 1;
  memory[1][0] = 0;
  ibv_wr_start(qp);
  write_to_target(qp, 1);
  add_invalid(qp);
  CHECK(ibv_wr_complete(qp) != 0);
  memory[0][0] = 2;
  ibv_wr_start(qp);
  write_to_target(qp, kMarker);
  CHECK(ibv_wr_complete(qp) == 0);
  expect_marker(name);
  CHECK(memory[1][0] == 2);
}

static void test_rc(void) {
  struct ibv_qp* a =
      create_qp(IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE |
                                IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_BIND_MW);
  struct ibv_qp* b = create_qp(IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
  for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; ++state) {
    move_qp(a, state, b->qp_num, gid);
    move_qp(b, state, a->qp_num, gid);
  }
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(a);
  run_rc(qp, "inline_read", add_inline_read);
  run_rc(qp, "inline_atomic", add_inline_atomic);
  run_rc(qp, "binding_of_type_1", add_binding_of_type_1);
  run_rc(qp, "binding_without_region", add_binding_without_region);
  run_rc(qp, "unknown_flags", add_unknown_flags);
  run_rc(qp, "too_many", add_more_than_the_queue_has);
  CHECK(ibv_destroy_qp(a) == 0);
  CHECK(ibv_destroy_qp(b) == 0);
}

// ---- UD -----------------------------------------------------------------------------------------

static struct ibv_qp* create_ud_qp(void) {
  struct ibv_qp* qp = create_qp(IBV_QPT_UD, IBV_QP_EX_WITH_SEND);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = kQkey};
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ==
        0);
  attr.qp_state = IBV_QPS_RTR;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
  attr.qp_state = IBV_QPS_RTS;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
  return qp;
}

static void run_ud(struct ibv_qp* sender, const char* name, struct ibv_ah* good_ah,
                   struct ibv_ah* bad_ah, uint32_t bad_qpn) {
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(sender);
  ibv_wr_start(qp);
  send_to(qp, 1, good_ah, sender->qp_num);
  send_to(qp, 2, bad_ah, bad_qpn);
  CHECK(ibv_wr_complete(qp) != 0);
  ibv_wr_start(qp);
  send_to(qp, kMarker, good_ah, sender->qp_num);
  CHECK(ibv_wr_complete(qp) == 0);
  expect_marker(name);
}

static void test_ud(void) {
  struct ibv_qp* sender = create_ud_qp();
  struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}};
  struct ibv_ah* ah = ibv_create_ah(pd, &attr);
  struct ibv_ah* other_ah = ibv_create_ah(other_pd, &attr);
  CHECK(ah != NULL && other_ah != NULL);
  run_ud(sender, "no_address", ah, NULL, 0);
  run_ud(sender, "address_of_another_pd", ah, other_ah, sender->qp_num);
  run_ud(sender, "remote_qpn_of_25_bits", ah, ah, 1u << 24 | sender->qp_num);
  CHECK(ibv_destroy_qp(sender) == 0);
}

int main(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  CHECK(list != NULL && list[0] != NULL);
  CHECK((device = ibv_open_device(list[0])));
  CHECK(ibv_query_gid(device, 1, 0, &gid) == 0);
  CHECK((pd = ibv_alloc_pd(device)) && (other_pd = ibv_alloc_pd(device)));
  CHECK((cq = ibv_create_cq(device, 64, NULL, NULL, 0)));
  CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)));
  test_rc();
  test_ud();
  return 0;
}
