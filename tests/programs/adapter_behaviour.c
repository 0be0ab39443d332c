// Prints results that may differ between adapters.  Uses two connected QPs of one program.  Posts
// 64 messages, and then polls their completions.  Then moves a QP with a receive request to the
// error state, and prints the time until the request is flushed.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kCount = 64, kBytes = 32 };

static struct ibv_context* device;
static struct ibv_pd* pd;
static struct ibv_mr* mr;
static char memory[2 * kBytes];
static union ibv_gid gid;
static int gid_index;

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "adapter_behaviour: %s: %s\n", what, strerror(errno));
  exit(1);
}

static struct ibv_qp* make_qp(struct ibv_cq* cq) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = kCount, .max_recv_wr = kCount, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC,
      .sq_sig_all = 1};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  need(qp != NULL, "ibv_create_qp");
  return qp;
}

static void connect_qp(struct ibv_qp* qp, uint32_t peer) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  int error = ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer;
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = gid;
  attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
  attr.ah_attr.grh.hop_limit = 64;
  if (error == 0) {
    error = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  if (error == 0) {
    error = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  errno = error;
  need(error == 0, "ibv_modify_qp");
}

static void post_receive(struct ibv_qp* qp, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)memory, kBytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  need(ibv_post_recv(qp, &wr, &bad) == 0, "ibv_post_recv");
}

static struct ibv_wc next_completion(struct ibv_cq* cq) {
  struct ibv_wc wc;
  int count = 0;
  while (count == 0) count = ibv_poll_cq(cq, 1, &wc);
  need(count == 1, "ibv_poll_cq");
  return wc;
}

static long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  need(list != NULL && list[0] != NULL, "no device");
  device = ibv_open_device(list[0]);
  need(device != NULL, "ibv_open_device");
  pd = ibv_alloc_pd(device);
  mr = pd == NULL ? NULL : ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  need(mr != NULL, "ibv_reg_mr");
  for (gid_index = 0; ibv_query_gid(device, 1, gid_index, &gid) == 0; ++gid_index) {
    if (gid.global.subnet_prefix != 0 || gid.global.interface_id != 0) break;
  }
  struct ibv_cq* sends = ibv_create_cq(device, 2 * kCount, NULL, NULL, 0);
  struct ibv_cq* receives = ibv_create_cq(device, 2 * kCount, NULL, NULL, 0);
  need(sends != NULL && receives != NULL, "ibv_create_cq");
  struct ibv_qp *from = make_qp(sends), *to = make_qp(receives);
  connect_qp(from, to->qp_num);
  connect_qp(to, from->qp_num);

  for (uint64_t id = 0; id < kCount; ++id) post_receive(to, id);
  for (uint64_t id = 0; id < kCount; ++id) {
    struct ibv_sge sge = {(uintptr_t)(memory + kBytes), kBytes, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    struct ibv_send_wr* bad;
    need(ibv_post_send(from, &wr, &bad) == 0, "ibv_post_send");
  }
  for (uint64_t id = 0; id < kCount; ++id) {
    const struct ibv_wc sent = next_completion(sends), received = next_completion(receives);
    errno = EPROTO;
    need(sent.status == IBV_WC_SUCCESS && sent.wr_id == id, "a send");
    need(received.status == IBV_WC_SUCCESS && received.wr_id == id, "a receive");
  }
  printf("posted and polled %d, in order\n", kCount);

  post_receive(to, 7);
  struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
  const long start_ms = now_ms();
  need(ibv_modify_qp(to, &error, IBV_QP_STATE) == 0, "to ERROR");
  const struct ibv_wc flushed = next_completion(receives);
  errno = EPROTO;
  need(flushed.status == IBV_WC_WR_FLUSH_ERR && flushed.wr_id == 7, "a flush");
  printf("flushed after %ld ms\n", now_ms() - start_ms);
  return 0;
}
