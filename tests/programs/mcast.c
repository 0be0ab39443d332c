// Sends and receives multicast with plain verbs:
//     mcast hear GROUP ADDRESS COUNT [QPS]   prints "here", then receives and prints COUNT messages
//     mcast say GROUP ADDRESS TEXT           sends TEXT from the interface with ADDRESS
//     mcast misuse GROUP ADDRESS             makes calls that must fail, and joins groups up to the
//                                            limit
// The Q_Key is the same as that of the RDMA CM's multicast groups, so the other end may be mckey.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kQkey = 0x01234567, kSlots = 64, kSlotBytes = 4096, kGrhBytes = 40, kQpsMax = 8 };

static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_cq* cq;
static struct ibv_mr* mr;
static char memory[kSlots * kSlotBytes];

static void need(int ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}
static void need_success(int error, const char* what) {
  errno = error;
  need(error == 0, what);
}

static union ibv_gid gid_of(const char* address) {
  union ibv_gid gid = {{0}};
  if (inet_pton(AF_INET6, address, gid.raw) == 1) return gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  need(inet_pton(AF_INET, address, gid.raw + 12) == 1, address);
  return gid;
}

static int gid_index_of(const char* address) {
  const union ibv_gid wanted = gid_of(address);
  union ibv_gid gid;
  for (int i = 0; ibv_query_gid(context, 1, i, &gid) == 0; ++i) {
    struct ibv_gid_entry entry;
    if (memcmp(&gid, &wanted, sizeof gid) != 0) continue;
    // Linux lists each address twice, for RoCE v1 and for RoCE v2.
    if (ibv_query_gid_ex(context, 1, (uint32_t)i, &entry, 0) == 0 &&
        entry.gid_type == IBV_GID_TYPE_ROCE_V2)
      return i;
  }
  fprintf(stderr, "%s is no address of this host\n", address);
  exit(1);
}

static void post_receive(struct ibv_qp* qp, uint64_t slot) {
  struct ibv_sge sge = {(uintptr_t)(memory + slot * kSlotBytes), kSlotBytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
  need_success(ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

static struct ibv_qp* create_qp(enum ibv_qp_type type) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .qp_type = type,
      .cap = {.max_send_wr = 4, .max_recv_wr = kSlots, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  need(qp != NULL, "ibv_create_qp");
  return qp;
}

static struct ibv_qp* make_ud_qp(void) {
  struct ibv_qp* qp = create_qp(IBV_QPT_UD);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = kQkey};
  need_success(
      ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
      "INIT");
  attr.qp_state = IBV_QPS_RTR;
  need_success(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
  attr.qp_state = IBV_QPS_RTS;
  need_success(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
  return qp;
}

static struct ibv_wc next_completion(void) {
  struct ibv_wc wc;
  int count;
  while ((count = ibv_poll_cq(cq, 1, &wc)) == 0) {
  }
  need(count == 1 && wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
  return wc;
}

static void hear(const char* group, int messages, int qps) {
  const union ibv_gid gid = gid_of(group);
  struct ibv_qp* qp[kQpsMax];
  for (int i = 0; i < qps; ++i) {
    qp[i] = make_ud_qp();
    for (int slot = i; slot < kSlots; slot += qps) post_receive(qp[i], (uint64_t)slot);
    need_success(ibv_attach_mcast(qp[i], &gid, 0), "ibv_attach_mcast");
  }
  puts("here");
  fflush(stdout);
  while (messages-- > 0) {
    const struct ibv_wc wc = next_completion();
    need((wc.wc_flags & IBV_WC_GRH) != 0, "no network header");
    printf("%d: %.*s\n", (int)(wc.wr_id % (uint64_t)qps), (int)wc.byte_len - kGrhBytes,
           memory + wc.wr_id * kSlotBytes + kGrhBytes);
    fflush(stdout);
    post_receive(qp[wc.wr_id % (uint64_t)qps], wc.wr_id);
  }
  for (int i = 0; i < qps; ++i) {
    if (ibv_destroy_qp(qp[i]) != EBUSY) printf("an attached QP is not busy\n");
    need_success(ibv_detach_mcast(qp[i], &gid, 0), "ibv_detach_mcast");
    need_success(ibv_destroy_qp(qp[i]), "ibv_destroy_qp");
  }
}

static void say(const char* group, const char* address, const char* text) {
  struct ibv_ah_attr to = {
      .is_global = 1,
      .port_num = 1,
      .grh = {.dgid = gid_of(group), .sgid_index = (uint8_t)gid_index_of(address), .hop_limit = 3}};
  struct ibv_qp* qp = make_ud_qp();
  struct ibv_ah* ah = ibv_create_ah(pd, &to);
  need(ah != NULL, "ibv_create_ah");
  const size_t bytes = strlen(text);
  memcpy(memory, text, bytes);
  struct ibv_sge sge = {(uintptr_t)memory, (uint32_t)bytes, mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED,
                           .wr.ud = {ah, 0xffffff, kQkey}},
                     *bad;
  need_success(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
  next_completion();
}

static void expect_error(const char* what, int error, int wanted) {
  if (error != wanted) printf("%s: %s, not %s\n", what, strerror(error), strerror(wanted));
}

static void misuse(const char* group, const char* address) {
  const union ibv_gid gid = gid_of(group), other = gid_of(address);
  struct ibv_qp* rc = create_qp(IBV_QPT_RC);
  struct ibv_qp* ud = make_ud_qp();
  expect_error("attaching RC", ibv_attach_mcast(rc, &gid, 0), EINVAL);
  expect_error("attaching to an address", ibv_attach_mcast(ud, &other, 0), EINVAL);
  expect_error("detaching from a group that is not attached", ibv_detach_mcast(ud, &gid, 0),
               EINVAL);
  need_success(ibv_attach_mcast(ud, &gid, 0), "attaching");
  need_success(ibv_attach_mcast(ud, &gid, 0), "attaching again");
  need_success(ibv_detach_mcast(ud, &gid, 0), "detaching");
  expect_error("detaching again", ibv_detach_mcast(ud, &gid, 0), EINVAL);
  struct ibv_device_attr device;
  need_success(ibv_query_device(context, &device), "ibv_query_device");
  union ibv_gid group_gid = gid;
  int groups = 0, error = 0;
  for (; groups <= device.max_mcast_grp && error == 0; ++groups) {
    group_gid.raw[14] = (uint8_t)(groups >> 8);
    group_gid.raw[15] = (uint8_t)groups;
    error = ibv_attach_mcast(ud, &group_gid, 0);
  }
  expect_error("too many groups", error, ENOMEM);
  printf("groups: %d\n", groups - 1);
}

int main(int argc, char** argv) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  need(list != NULL && list[0] != NULL, "no device");
  need((context = ibv_open_device(list[0])) != NULL, "ibv_open_device");
  need((pd = ibv_alloc_pd(context)) != NULL, "ibv_alloc_pd");
  need((cq = ibv_create_cq(context, 2 * kSlots, NULL, NULL, 0)) != NULL, "ibv_create_cq");
  need((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)) != NULL, "ibv_reg_mr");
  if (argc >= 5 && strcmp(argv[1], "hear") == 0) {
    const int qps = argc > 5 ? atoi(argv[5]) : 1;
    gid_index_of(argv[3]);  // ends the program if this host does not have the address
    hear(argv[2], atoi(argv[4]), qps < 1 || qps > kQpsMax ? 1 : qps);
  } else if (argc == 5 && strcmp(argv[1], "say") == 0) {
    say(argv[2], argv[3], argv[4]);
  } else if (argc == 4 && strcmp(argv[1], "misuse") == 0) {
    misuse(argv[2], argv[3]);
  } else {
    fprintf(stderr, "usage: mcast hear|say|misuse GROUP ADDRESS [COUNT [QPS] | TEXT]\n");
    return 2;
  }
  return 0;
}
