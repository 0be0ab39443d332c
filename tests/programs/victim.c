// Serves as the target of random packets (an attack).  The program has RC and UD queue pairs in all
// states of their type, and UC queue pairs in RTR, RTS and SQD.  They have posted requests if their
// state allows that.  RC and UC queue pairs are connected to a peer that does not exist.  A
// listener accepts, rejects or ignores requests.  The program also requests connections that nobody
// answers.  If a packet changes the state of a queue pair, the program restores the state, so that
// an attack always finds queue pairs in all these states.
//
//   victim ADDRESS4 ADDRESS6 PEER4 PEER6 PORT
//
// Prints its objects in the format that tests/wire/target.h describes, and then "ready".  For each
// line on its standard input it checks that protected memory, which nobody may write, is unchanged.
// Then it prints "whole REPAIRS CONNECTIONS": the numbers of restored QPs and of ended connections.
// It ends cleanly when its standard input ends.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "victim: line %d: not true: %s (%s)\n", __LINE__, #condition, \
              strerror(errno));                                                     \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

enum {
  kPeerQpn = 0x700000,
  kQkey = 0x11223344,
  kRegionBytes = 256 * 1024,  // memory for remote access
  kGuardBytes = 64 * 1024,    // protected memory before and after each region
  kReceiveBytes = 4100,       // less than the longest datagram
  kDepth = 32,
  kSends = 5,
  kQpsMax = 64,
  kAcceptedMax = 64,
  kOutgoingMax = 4,         // connections that this program requests at the same time
  kRestoreIntervalMs = 20,  // the longest time before a QP that an attack has changed is restored
  kGuardByte = 0xa5,
};

struct target_qp {
  struct ibv_qp* qp;
  enum ibv_qp_state state;  // the state to restore
  int ipv6, has_sends;
  uint32_t peer_qpn, rq_psn, sq_psn;
  enum ibv_mtu mtu;
};

static struct ibv_context* device;
static struct ibv_pd* pd;
static struct ibv_comp_channel* completions;
static struct ibv_cq *cq, *cm_cq;
static struct ibv_mr *region, *readable, *receives;
static unsigned char *region_memory, *readable_memory, *receive_memory;
static int gid_index[2];
static union ibv_gid peer_gid[2];
static struct target_qp qps[kQpsMax];
static int qp_count;
static unsigned long restored_count, ended_connections;

static struct rdma_event_channel* channel;
static struct rdma_cm_id* accepted[kAcceptedMax];
static unsigned long requests;
static struct sockaddr_storage request_from[2], request_to[2];
static int outgoing;

// ---- memory -------------------------------------------------------------------------------------

static unsigned char* allocate_guarded(size_t bytes) {
  unsigned char* memory = malloc(bytes + 2 * kGuardBytes);
  CHECK(memory != NULL);
  memset(memory, kGuardByte, bytes + 2 * kGuardBytes);
  return memory + kGuardBytes;
}

static void check_guard(const unsigned char* at, size_t bytes, const char* what) {
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] == kGuardByte) continue;
    fprintf(stderr, "victim: protected memory has changed: %s + %zu\n", what, i);
    exit(1);
  }
}

static void check_memory(void) {
  check_guard(region_memory - kGuardBytes, kGuardBytes, "before the region");
  check_guard(region_memory + kRegionBytes, kGuardBytes, "after the region");
  check_guard(readable_memory - kGuardBytes, kRegionBytes + 2 * kGuardBytes, "the readable region");
  check_guard(receive_memory - kGuardBytes, kGuardBytes, "before the receives");
  check_guard(receive_memory + kReceiveBytes, kGuardBytes, "after the receives");
}

// ---- queue pairs --------------------------------------------------------------------------------

static enum ibv_qp_state state_of(struct target_qp* p) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(p->qp, &attr, IBV_QP_STATE, &init) == 0);
  return attr.qp_state;
}

// Moves the QP to a state.  Returns 0 if an attack has moved it to the error state meanwhile.
static int modify(struct target_qp* p, enum ibv_qp_state state) {
  const int is_rc = p->qp->qp_type == IBV_QPT_RC, is_ud = p->qp->qp_type == IBV_QPT_UD;
  struct ibv_qp_attr a = {.qp_state = state, .port_num = 1, .qkey = kQkey};
  int mask = IBV_QP_STATE;
  if (state == IBV_QPS_INIT) {
    a.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE |
                        IBV_ACCESS_REMOTE_ATOMIC;
    mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
  } else if (state == IBV_QPS_RTR && !is_ud) {
    a.path_mtu = p->mtu;
    a.dest_qp_num = p->peer_qpn;
    a.rq_psn = p->rq_psn;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = 12;
    a.ah_attr = (struct ibv_ah_attr){
        .is_global = 1,
        .port_num = 1,
        .grh = {
            .dgid = peer_gid[p->ipv6], .sgid_index = (uint8_t)gid_index[p->ipv6], .hop_limit = 64}};
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (is_rc) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  } else if (state == IBV_QPS_RTS) {
    a.sq_psn = p->sq_psn;
    a.timeout = 14;
    a.retry_cnt = 7;
    a.rnr_retry = 7;
    a.max_rd_atomic = 4;
    mask |= IBV_QP_SQ_PSN;
    if (is_rc)
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  errno = ibv_modify_qp(p->qp, &a, mask);
  CHECK(errno == 0 || state_of(p) == IBV_QPS_ERR);
  return errno == 0;
}

static void post_receives(struct target_qp* p) {
  struct ibv_sge sge = {(uintptr_t)receive_memory, kReceiveBytes, receives->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  while (ibv_post_recv(p->qp, &wr, &bad) == 0) continue;
}

static void post_sends(struct target_qp* p) {
  static const enum ibv_wr_opcode opcodes[kSends] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM,
                                                     IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
                                                     IBV_WR_ATOMIC_FETCH_AND_ADD};
  for (int i = 0; i < kSends; ++i) {
    struct ibv_sge sge = {(uintptr_t)receive_memory, (uint32_t)(1 + i * 1400), receives->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcodes[i]}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = 0x10000;
    wr.wr.rdma.rkey = 7;
    if (ibv_post_send(p->qp, &wr, &bad) != 0) break;  // an attack has changed the QP's state
  }
}

// Moves the QP to SQE with an invalid send.  Only UD has this state.
static void break_send_queue(struct target_qp* p) {
  struct ibv_ah_attr where = {
      .is_global = 1,
      .port_num = 1,
      .grh = {
          .dgid = peer_gid[p->ipv6], .sgid_index = (uint8_t)gid_index[p->ipv6], .hop_limit = 64}};
  struct ibv_ah* ah = ibv_create_ah(pd, &where);
  CHECK(ah != NULL);
  struct ibv_sge sge = {(uintptr_t)receive_memory, 64, 0x77777777};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = 5;
  wr.wr.ud.remote_qkey = kQkey;
  CHECK(ibv_post_send(p->qp, &wr, &bad) == 0);
  CHECK(ibv_destroy_ah(ah) == 0);
}

// Moves the QP to RESET, and from there to the state that it should have.
static void restore(struct target_qp* p) {
  if (state_of(p) != IBV_QPS_RESET) CHECK(modify(p, IBV_QPS_RESET));
  if (p->state == IBV_QPS_RESET) return;
  if (p->state == IBV_QPS_ERR) {
    CHECK(modify(p, IBV_QPS_ERR));
    return;
  }
  CHECK(modify(p, IBV_QPS_INIT));
  post_receives(p);
  if (p->state == IBV_QPS_INIT || !modify(p, IBV_QPS_RTR)) return;
  if (p->state == IBV_QPS_RTR || !modify(p, IBV_QPS_RTS)) return;
  if (p->has_sends) post_sends(p);
  if (p->state == IBV_QPS_SQD) modify(p, IBV_QPS_SQD);
  if (p->state == IBV_QPS_SQE) break_send_queue(p);
}

static struct ibv_qp* create_qp(enum ibv_qp_type type) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .qp_type = type,
      .cap = {.max_send_wr = 16, .max_recv_wr = kDepth, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  CHECK(qp != NULL);
  return qp;
}

static void add_qp(enum ibv_qp_type type, enum ibv_qp_state state, int ipv6, enum ibv_mtu mtu,
                   int has_sends) {
  CHECK(qp_count < kQpsMax);
  struct target_qp* p = &qps[qp_count];
  const uint32_t near_wraparound = 0xfffff0;
  *p = (struct target_qp){.qp = create_qp(type),
                          .state = state,
                          .ipv6 = ipv6,
                          .has_sends = has_sends,
                          .peer_qpn = (uint32_t)(kPeerQpn + qp_count),
                          .rq_psn = ipv6 ? near_wraparound : 1000,
                          .sq_psn = ipv6 ? near_wraparound : 2000,
                          .mtu = mtu};
  ++qp_count;
  restore(p);
  const char* name = type == IBV_QPT_RC ? "rc" : type == IBV_QPT_UC ? "uc" : "ud";
  printf("%s %u %u %u %u %u %d\n", name, p->qp->qp_num, p->peer_qpn, p->rq_psn, p->sq_psn,
         type == IBV_QPT_UD ? 4096u : 128u << mtu, ipv6 ? 6 : 4);
}

static void add_all_qps(void) {
  static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
                                             IBV_QPS_RTS,   IBV_QPS_SQD,  IBV_QPS_ERR};
  for (int ipv6 = 0; ipv6 < 2; ++ipv6) {
    for (unsigned i = 0; i < sizeof states / sizeof *states; ++i) {
      add_qp(IBV_QPT_RC, states[i], ipv6, IBV_MTU_1024, 0);
      add_qp(IBV_QPT_UD, states[i], ipv6, IBV_MTU_4096, 0);
    }
    add_qp(IBV_QPT_UD, IBV_QPS_SQE, ipv6, IBV_MTU_4096, 0);
    add_qp(IBV_QPT_UC, IBV_QPS_RTR, ipv6, IBV_MTU_256, 0);
    add_qp(IBV_QPT_UC, IBV_QPS_RTS, ipv6, IBV_MTU_1024, 0);
    add_qp(IBV_QPT_UC, IBV_QPS_SQD, ipv6, IBV_MTU_4096, 0);
    for (int mtu = IBV_MTU_256; mtu <= IBV_MTU_4096; mtu += 2) {
      add_qp(IBV_QPT_RC, IBV_QPS_RTS, ipv6, (enum ibv_mtu)mtu, 1);
      add_qp(IBV_QPT_RC, IBV_QPS_SQD, ipv6, (enum ibv_mtu)mtu, 1);
    }
  }
  struct ibv_qp* destroyed[] = {create_qp(IBV_QPT_RC), create_qp(IBV_QPT_UD)};
  for (int i = 0; i < 2; ++i) {
    printf("absent %u\n", destroyed[i]->qp_num);
    CHECK(ibv_destroy_qp(destroyed[i]) == 0);
  }
}

static void restore_all(void) {
  for (int i = 0; i < qp_count; ++i) {
    struct target_qp* p = &qps[i];
    if (state_of(p) != p->state) {
      restore(p);
      ++restored_count;
    } else if (p->state != IBV_QPS_RESET && p->state != IBV_QPS_ERR) {
      post_receives(p);
    }
  }
}

static void drain_completions(void) {
  struct ibv_cq* event_cq = NULL;
  void* context = NULL;
  unsigned events = 0;
  while (ibv_get_cq_event(completions, &event_cq, &context) == 0) ++events;
  if (events > 0) ibv_ack_cq_events(cq, events);
  struct ibv_wc wc[32];
  do {
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    int count;
    while ((count = ibv_poll_cq(cq, 32, wc)) > 0) continue;
    CHECK(count == 0);
    while ((count = ibv_poll_cq(cm_cq, 32, wc)) > 0) continue;
    CHECK(count == 0);
  } while (ibv_poll_cq(cq, 1, wc) > 0);
}

static void drain_async(void) {
  struct ibv_async_event event;
  while (ibv_get_async_event(device, &event) == 0) {
    CHECK(event.event_type != IBV_EVENT_DEVICE_FATAL);
    ibv_ack_async_event(&event);
  }
}

// ---- connections --------------------------------------------------------------------------------

static void destroy_connection(struct rdma_cm_id* id) {
  if (id->qp != NULL) rdma_destroy_qp(id);
  CHECK(rdma_destroy_id(id) == 0);
  ++ended_connections;
}

static void make_cm_qp(struct rdma_cm_id* id) {
  struct ibv_qp_init_attr init = {
      .send_cq = cm_cq,
      .recv_cq = cm_cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
  CHECK(rdma_create_qp(id, pd, &init) == 0);
}

static void request_connection(void) {
  const int ipv6 = requests % 2 != 0;
  struct rdma_cm_id* id = NULL;
  CHECK(rdma_create_id(channel, &id, &outgoing, RDMA_PS_TCP) == 0);
  ++outgoing;
  if (rdma_resolve_addr(id, (struct sockaddr*)&request_from[ipv6],
                        (struct sockaddr*)&request_to[ipv6], 1000) == 0) {
    return;
  }
  --outgoing;
  CHECK(rdma_destroy_id(id) == 0);
}

// Accepts one of four requests, rejects one, destroys one without an answer, and ignores one.
static void on_request(struct rdma_cm_id* id) {
  struct rdma_cm_id** entry = &accepted[requests++ % kAcceptedMax];
  if (*entry != NULL) destroy_connection(*entry);
  *entry = NULL;
  struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
  switch (requests % 4) {
    case 0: rdma_reject(id, "no", 2); break;
    case 1: break;
    case 2: *entry = id; return;
    default:
      make_cm_qp(id);
      *entry = id;
      if (rdma_accept(id, &param) != 0) break;  // fails if the client has withdrawn the request
      return;
  }
  *entry = NULL;
  destroy_connection(id);
}

// Takes the next step of a connection that this program requests.  Returns 0 on success.
static int continue_request(struct rdma_cm_id* id, enum rdma_cm_event_type event) {
  struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 3};
  if (event == RDMA_CM_EVENT_ADDR_RESOLVED) return rdma_resolve_route(id, 1000);
  if (event != RDMA_CM_EVENT_ROUTE_RESOLVED) return -1;
  make_cm_qp(id);
  return rdma_connect(id, &param);
}

static void on_cm_event(struct rdma_cm_event* event) {
  struct rdma_cm_id* id = event->id;
  const enum rdma_cm_event_type type = event->event;
  CHECK(type != RDMA_CM_EVENT_DEVICE_REMOVAL);
  CHECK(rdma_ack_cm_event(event) == 0);
  if (type == RDMA_CM_EVENT_CONNECT_REQUEST) return on_request(id);
  if (type == RDMA_CM_EVENT_ESTABLISHED || type == RDMA_CM_EVENT_TIMEWAIT_EXIT) return;
  const int is_outgoing = id->context == &outgoing;
  if (is_outgoing && continue_request(id, type) == 0) return;
  if (is_outgoing) --outgoing;
  for (int i = 0; i < kAcceptedMax; ++i) {
    if (accepted[i] == id) accepted[i] = NULL;
  }
  destroy_connection(id);
}

static void drain_cm(void) {
  struct rdma_cm_event* event = NULL;
  while (rdma_get_cm_event(channel, &event) == 0) on_cm_event(event);
  if (outgoing < kOutgoingMax) request_connection();
}

// ---- start and end -----------------------------------------------------------------------------

static void set_nonblocking(int fd) {
  CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

static union ibv_gid gid_of(const char* text) {
  union ibv_gid gid;
  char mapped[64];
  snprintf(mapped, sizeof mapped, "%s%s", strchr(text, ':') == NULL ? "::ffff:" : "", text);
  CHECK(inet_pton(AF_INET6, mapped, gid.raw) == 1);
  return gid;
}

static int index_of(const char* text) {
  const union ibv_gid wanted = gid_of(text);
  struct ibv_port_attr port;
  CHECK(ibv_query_port(device, 1, &port) == 0);
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    union ibv_gid gid;
    if (ibv_query_gid(device, 1, i, &gid) == 0 && memcmp(&gid, &wanted, sizeof gid) == 0) return i;
  }
  fprintf(stderr, "victim: %s is no GID here\n", text);
  exit(1);
}

static void open_device(char** argv) {
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  CHECK(list != NULL && count > 0);
  // Use the context of the RDMA CM, so that connections and QPs share it.
  struct ibv_context** contexts = rdma_get_devices(&count);
  CHECK(contexts != NULL && count > 0);
  device = contexts[0];
  ibv_free_device_list(list);
  for (int ipv6 = 0; ipv6 < 2; ++ipv6) {
    gid_index[ipv6] = index_of(argv[1 + ipv6]);
    peer_gid[ipv6] = gid_of(argv[3 + ipv6]);
  }
  pd = ibv_alloc_pd(device);
  completions = ibv_create_comp_channel(device);
  CHECK(pd != NULL && completions != NULL);
  cq = ibv_create_cq(device, 65536, NULL, completions, 0);
  cm_cq = ibv_create_cq(device, 4096, NULL, NULL, 0);
  region_memory = allocate_guarded(kRegionBytes);
  readable_memory = allocate_guarded(kRegionBytes);
  receive_memory = allocate_guarded(kReceiveBytes);
  region = ibv_reg_mr(pd, region_memory, kRegionBytes,
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_REMOTE_ATOMIC);
  readable = ibv_reg_mr(pd, readable_memory, kRegionBytes, IBV_ACCESS_REMOTE_READ);
  receives = ibv_reg_mr(pd, receive_memory, kReceiveBytes, IBV_ACCESS_LOCAL_WRITE);
  CHECK(cq != NULL && cm_cq != NULL && region != NULL && readable != NULL && receives != NULL);
}

static void set_address(struct sockaddr_storage* out, const char* text, int port) {
  memset(out, 0, sizeof *out);
  if (strchr(text, ':') != NULL) {
    struct sockaddr_in6* in6 = (struct sockaddr_in6*)out;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons((uint16_t)port);
    CHECK(inet_pton(AF_INET6, text, &in6->sin6_addr) == 1);
  } else {
    struct sockaddr_in* in = (struct sockaddr_in*)out;
    in->sin_family = AF_INET;
    in->sin_port = htons((uint16_t)port);
    CHECK(inet_pton(AF_INET, text, &in->sin_addr) == 1);
  }
}

static struct rdma_cm_id* listen_on(int port) {
  struct rdma_cm_id* listener = NULL;
  struct sockaddr_storage any;
  set_address(&any, "::", port);
  channel = rdma_create_event_channel();
  CHECK(channel != NULL);
  CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
  CHECK(rdma_bind_addr(listener, (struct sockaddr*)&any) == 0);
  CHECK(rdma_listen(listener, 16) == 0);
  return listener;
}

// Runs until the end of the standard input.
static void run(void) {
  struct pollfd fds[] = {{STDIN_FILENO, POLLIN, 0},
                         {device->async_fd, POLLIN, 0},
                         {completions->fd, POLLIN, 0},
                         {channel->fd, POLLIN, 0}};
  for (;;) {
    CHECK(poll(fds, 4, kRestoreIntervalMs) >= 0 || errno == EINTR);
    if (fds[0].revents != 0) {
      char line[64];
      const ssize_t bytes = read(STDIN_FILENO, line, sizeof line);
      if (bytes <= 0) return;
      check_memory();
      printf("whole %lu %lu\n", restored_count, ended_connections);
    }
    drain_async();
    drain_cm();
    drain_completions();
    restore_all();
  }
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc != 6) {
    fprintf(stderr, "usage: victim ADDRESS4 ADDRESS6 PEER4 PEER6 PORT\n");
    return 2;
  }
  open_device(argv);
  for (int ipv6 = 0; ipv6 < 2; ++ipv6) {
    set_address(&request_from[ipv6], argv[1 + ipv6], 0);
    set_address(&request_to[ipv6], argv[3 + ipv6], 9);
  }
  struct rdma_cm_id* listener = listen_on(atoi(argv[5]));
  add_all_qps();
  set_nonblocking(device->async_fd);
  set_nonblocking(completions->fd);
  set_nonblocking(channel->fd);
  printf("victim %s %s\npeer %s %s\n", argv[1], argv[2], argv[3], argv[4]);
  printf("memory %llu %d %u\nmemory %llu %d %u\nqkey %u\nport %s\nready\n",
         (unsigned long long)(uintptr_t)region_memory, kRegionBytes, region->rkey,
         (unsigned long long)(uintptr_t)readable_memory, kRegionBytes, readable->rkey, kQkey,
         argv[5]);
  run();
  check_memory();
  for (int i = 0; i < kAcceptedMax; ++i) {
    if (accepted[i] != NULL) destroy_connection(accepted[i]);
  }
  CHECK(rdma_destroy_id(listener) == 0);
  for (int i = 0; i < qp_count; ++i) CHECK(ibv_destroy_qp(qps[i].qp) == 0);
  return 0;
}
