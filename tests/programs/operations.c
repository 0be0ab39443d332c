// Runs operations between two connected QPs of one program by calls of libibverbs.  Prints "good
// NAME" for each of them, or prints a failure and exits with 1.
//
// The names are rc_atomics, atomic_write, window1, window2, invalidate, uc and drained.
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "move_qp.h"

enum { kAdditions = 2000, kBytes = 8192, kWaitMs = 20000 };

static struct ibv_context* device;
static struct ibv_pd* pd;
static union ibv_gid gid;

// Represents one end of the connection: `a` is the requester, and `b` owns the memory.
struct end {
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct ibv_mr* mr;
  uint64_t memory[kBytes / 8];
};
static struct end a, b;

static void open_end(struct end* end, enum ibv_qp_type type) {
  memset(end->memory, 0, sizeof end->memory);
  CHECK((end->cq = ibv_create_cq(device, 64, NULL, NULL, 0)));
  struct ibv_qp_init_attr init = {
      .send_cq = end->cq,
      .recv_cq = end->cq,
      .qp_type = type,
      .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
  CHECK((end->qp = ibv_create_qp(pd, &init)));
  CHECK((end->mr =
             ibv_reg_mr(pd, end->memory, kBytes,
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                            IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)));
}
static void open_both(enum ibv_qp_type type) {
  open_end(&a, type);
  open_end(&b, type);
  for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; ++state) {
    move_qp(a.qp, state, b.qp->qp_num, gid);
    move_qp(b.qp, state, a.qp->qp_num, gid);
  }
}
static void close_end(struct end* end) {
  CHECK(ibv_destroy_qp(end->qp) == 0);
  CHECK((errno = ibv_dereg_mr(end->mr)) == 0);
  CHECK(ibv_destroy_cq(end->cq) == 0);
}
static void close_both(const char* name) {
  close_end(&a);
  close_end(&b);
  printf("good %s\n", name);
  fflush(stdout);
}

static void post(struct ibv_qp* qp, struct ibv_send_wr wr) {
  struct ibv_send_wr* bad;
  errno = ibv_post_send(qp, &wr, &bad);
  CHECK(errno == 0);
}
static struct ibv_sge sge_of(struct end* end, unsigned word, unsigned bytes) {
  return (struct ibv_sge){(uintptr_t)&end->memory[word], bytes, end->mr->lkey};
}
static void receive(struct end* end, unsigned word, unsigned bytes) {
  struct ibv_sge sge = sge_of(end, word, bytes);
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(end->qp, &wr, &bad) == 0);
}
static struct ibv_wc next_completion(struct end* end) {
  struct ibv_wc wc;
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  int count;
  while ((count = ibv_poll_cq(end->cq, 1, &wc)) == 0) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK((now.tv_sec - begin.tv_sec) * 1000 < kWaitMs);
  }
  CHECK(count == 1);
  return wc;
}
static void expect_completion(struct end* end, enum ibv_wc_status status,
                              enum ibv_wc_opcode opcode) {
  const struct ibv_wc wc = next_completion(end);
  if (wc.status != status) fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
  CHECK(wc.status == status);
  if (status == IBV_WC_SUCCESS) CHECK(wc.opcode == opcode);
}

// ---- atomics ------------------------------------------------------------------------------------

static void* add_concurrently(void* number) {
  for (int i = 0; i < kAdditions; ++i) __atomic_fetch_add((uint64_t*)number, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static void post_atomic(enum ibv_wr_opcode opcode, uint64_t compare_add, uint64_t swap) {
  struct ibv_sge sge = sge_of(&a, 0, 8);
  post(a.qp, (struct ibv_send_wr){.sg_list = &sge,
                                  .num_sge = 1,
                                  .opcode = opcode,
                                  .send_flags = IBV_SEND_SIGNALED,
                                  .wr.atomic = {.remote_addr = (uintptr_t)&b.memory[0],
                                                .rkey = b.mr->rkey,
                                                .compare_add = compare_add,
                                                .swap = swap}});
}

static void rc_atomics(void) {
  struct ibv_device_attr attr;
  CHECK(ibv_query_device(device, &attr) == 0);
  CHECK(attr.atomic_cap == IBV_ATOMIC_GLOB);
  open_both(IBV_QPT_RC);
  // The atomics are global, so a thread of this program may add to the same memory.
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, add_concurrently, &b.memory[0]) == 0);
  for (int i = 0; i < kAdditions; ++i) {
    post_atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
    expect_completion(&a, IBV_WC_SUCCESS, IBV_WC_FETCH_ADD);
  }
  pthread_join(thread, NULL);
  CHECK(b.memory[0] == 2 * kAdditions);
  post_atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 1, 99);
  expect_completion(&a, IBV_WC_SUCCESS, IBV_WC_COMP_SWAP);
  CHECK(a.memory[0] == 2 * kAdditions && b.memory[0] == 2 * kAdditions);
  post_atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 2 * kAdditions, 99);
  expect_completion(&a, IBV_WC_SUCCESS, IBV_WC_COMP_SWAP);
  CHECK(a.memory[0] == 2 * kAdditions && b.memory[0] == 99);
  close_both("rc_atomics");
}

static void atomic_write(void) {
  open_both(IBV_QPT_RC);
  a.memory[0] = 0x0123456789abcdef;
  struct ibv_sge sge = sge_of(&a, 0, 8);
  post(a.qp, (struct ibv_send_wr){
                 .sg_list = &sge,
                 .num_sge = 1,
                 .opcode = IBV_WR_ATOMIC_WRITE,
                 .send_flags = IBV_SEND_SIGNALED,
                 .wr.rdma = {.remote_addr = (uintptr_t)&b.memory[5], .rkey = b.mr->rkey}});
  expect_completion(&a, IBV_WC_SUCCESS, IBV_WC_ATOMIC_WRITE);
  CHECK(b.memory[5] == 0x0123456789abcdef);
  close_both("atomic_write");
}

// ---- windows ------------------------------------------------------------------------------------

static void write_word(uint32_t rkey, uint64_t value, enum ibv_wc_status status) {
  a.memory[0] = value;
  struct ibv_sge sge = sge_of(&a, 0, 8);
  post(a.qp,
       (struct ibv_send_wr){.sg_list = &sge,
                            .num_sge = 1,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .send_flags = IBV_SEND_SIGNALED,
                            .wr.rdma = {.remote_addr = (uintptr_t)&b.memory[8], .rkey = rkey}});
  expect_completion(&a, status, IBV_WC_RDMA_WRITE);
}
static struct ibv_mw_bind_info bind_info_of_b(void) {
  return (struct ibv_mw_bind_info){.mr = b.mr,
                                   .addr = (uintptr_t)&b.memory[8],
                                   .length = 8,
                                   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
}

static void window1(void) {
  open_both(IBV_QPT_RC);
  struct ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  CHECK(mw);
  const uint32_t first = mw->rkey;
  struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = bind_info_of_b()};
  CHECK((errno = ibv_bind_mw(b.qp, mw, &bind)) == 0);
  CHECK(mw->rkey != first);
  expect_completion(&b, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
  write_word(mw->rkey, 7, IBV_WC_SUCCESS);
  CHECK(b.memory[8] == 7);
  CHECK(ibv_dereg_mr(b.mr) == EBUSY);
  bind.bind_info = (struct ibv_mw_bind_info){.mr = NULL};
  CHECK((errno = ibv_bind_mw(b.qp, mw, &bind)) == 0);
  expect_completion(&b, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
  write_word(mw->rkey, 8, IBV_WC_REM_ACCESS_ERR);
  CHECK(b.memory[8] == 7);
  CHECK(ibv_dealloc_mw(mw) == 0);
  close_both("window1");
}

static struct ibv_mw* bind_window2(uint32_t* rkey) {
  struct ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  CHECK(mw);
  *rkey = ibv_inc_rkey(mw->rkey);
  post(b.qp,
       (struct ibv_send_wr){.opcode = IBV_WR_BIND_MW,
                            .send_flags = IBV_SEND_SIGNALED,
                            .bind_mw = {.mw = mw, .rkey = *rkey, .bind_info = bind_info_of_b()}});
  expect_completion(&b, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
  write_word(*rkey, 7, IBV_WC_SUCCESS);
  CHECK(b.memory[8] == 7);
  return mw;
}

static void window2(void) {
  open_both(IBV_QPT_RC);
  uint32_t rkey;
  struct ibv_mw* mw = bind_window2(&rkey);
  post(b.qp,
       (struct ibv_send_wr){
           .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey});
  expect_completion(&b, IBV_WC_SUCCESS, IBV_WC_LOCAL_INV);
  write_word(rkey, 8, IBV_WC_REM_ACCESS_ERR);
  CHECK(b.memory[8] == 7);
  CHECK(ibv_dealloc_mw(mw) == 0);
  close_both("window2");
}

static void invalidate(void) {
  open_both(IBV_QPT_RC);
  uint32_t rkey;
  struct ibv_mw* mw = bind_window2(&rkey);
  receive(&b, 100, 64);
  struct ibv_sge sge = sge_of(&a, 0, 8);
  post(a.qp, (struct ibv_send_wr){.sg_list = &sge,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND_WITH_INV,
                                  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                                  .invalidate_rkey = rkey});
  expect_completion(&a, IBV_WC_SUCCESS, IBV_WC_SEND);
  const struct ibv_wc wc = next_completion(&b);
  CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
  CHECK(wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == rkey);
  CHECK(b.memory[100] == 7);
  write_word(rkey, 8, IBV_WC_REM_ACCESS_ERR);
  CHECK(ibv_dealloc_mw(mw) == 0);
  close_both("invalidate");
}

// ---- UC, and draining a send queue -------------------------------------------------------------

static void uc(void) {
  open_both(IBV_QPT_UC);
  receive(&b, 100, 4096);
  receive(&b, 700, 0);
  for (int i = 0; i < 500; ++i) a.memory[i] = i;
  struct ibv_sge sge = sge_of(&a, 0, 4000);
  post(a.qp,
       (struct ibv_send_wr){
           .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED});
  expect_completion(&a, IBV_WC_SUCCESS, IBV_WC_SEND);
  expect_completion(&b, IBV_WC_SUCCESS, IBV_WC_RECV);
  CHECK(memcmp(&a.memory[0], &b.memory[100], 4000) == 0);
  sge.length = 8;
  post(a.qp, (struct ibv_send_wr){
                 .sg_list = &sge,
                 .num_sge = 1,
                 .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                 .send_flags = IBV_SEND_SIGNALED,
                 .imm_data = 0x11223344,
                 .wr.rdma = {.remote_addr = (uintptr_t)&b.memory[900], .rkey = b.mr->rkey}});
  expect_completion(&a, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
  const struct ibv_wc wc = next_completion(&b);
  CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(wc.imm_data == 0x11223344);
  struct ibv_send_wr read = {.opcode = IBV_WR_RDMA_READ}, *bad;
  CHECK(ibv_post_send(a.qp, &read, &bad) == EINVAL);
  close_both("uc");
}

static void drained(void) {
  open_both(IBV_QPT_RC);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
  errno = ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
  CHECK(errno == 0);
  struct ibv_async_event event;
  do {
    struct pollfd fd = {.fd = device->async_fd, .events = POLLIN};
    CHECK(poll(&fd, 1, kWaitMs) == 1);
    CHECK(ibv_get_async_event(device, &event) == 0);
    ibv_ack_async_event(&event);
  } while (event.event_type != IBV_EVENT_SQ_DRAINED);
  CHECK(event.element.qp == a.qp);
  // Requests that are posted now wait for RTS.
  receive(&b, 100, 64);
  struct ibv_sge sge = sge_of(&a, 0, 8);
  post(a.qp, (struct ibv_send_wr){.sg_list = &sge,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND,
                                  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED});
  struct ibv_wc wc;
  CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init) == 0);
  CHECK(attr.qp_state == IBV_QPS_SQD && attr.sq_draining == 0);
  attr.qp_state = IBV_QPS_RTS;
  CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
  expect_completion(&a, IBV_WC_SUCCESS, IBV_WC_SEND);
  expect_completion(&b, IBV_WC_SUCCESS, IBV_WC_RECV);
  close_both("drained");
}

int main(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  CHECK(list && list[0]);
  CHECK((device = ibv_open_device(list[0])));
  ibv_free_device_list(list);
  CHECK(ibv_query_gid(device, 1, 0, &gid) == 0);
  CHECK((pd = ibv_alloc_pd(device)));
  rc_atomics();
  atomic_write();
  window1();
  window2();
  invalidate();
  uc();
  drained();
  CHECK(ibv_dealloc_pd(pd) == 0);
  CHECK(ibv_close_device(device) == 0);
  return 0;
}
