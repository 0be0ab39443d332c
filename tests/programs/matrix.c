// Runs all operations between two hosts, which may have different adapters, and compares each
// message:
//
//   matrix answer GID PORT MTU            waits on TCP port PORT for the other side
//   matrix ask GID PORT MTU PEER [rc]     runs all operations with host PEER; with "rc" only RC
//                                         operations, for a line that loses packets
//
// GID is an address in the host's GID table.  MTU is 1 (256 bytes) to 5 (4096).  The asking side
// prints a line for each operation: "NAME good", "NAME bad: REASON", or "NAME none: ..." if an
// adapter lacks the operation.  It exits with 1 if an operation was bad.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kOldKeyBytes = 8 };  // size of the WRITE with the key of an invalidated window
enum { kBytesMax = 60000, kRounds = 3, kGrhBytes = 40, kWaitMs = 20000, kQkey = 0x11111111 };
enum { kWindows = 1, kAtomicWrite = 2 };  // features that an adapter may lack
enum { kAtomicWriteBit = 40 };            // a kernel capability flag; verbs.h does not name it

enum variant { kPlain, kWindow1, kWindow2, kInvalidate };
struct operation {
  const char* name;
  enum ibv_qp_type type;
  enum ibv_wr_opcode opcode;
  enum variant variant;
  int needs;  // features that both adapters must have
};
static const struct operation kOperations[] = {
    {"rc-send", IBV_QPT_RC, IBV_WR_SEND, kPlain, 0},
    {"rc-send-imm", IBV_QPT_RC, IBV_WR_SEND_WITH_IMM, kPlain, 0},
    {"rc-send-invalidate", IBV_QPT_RC, IBV_WR_SEND_WITH_INV, kInvalidate, kWindows},
    {"rc-write", IBV_QPT_RC, IBV_WR_RDMA_WRITE, kPlain, 0},
    {"rc-write-imm", IBV_QPT_RC, IBV_WR_RDMA_WRITE_WITH_IMM, kPlain, 0},
    {"rc-write-window-1", IBV_QPT_RC, IBV_WR_RDMA_WRITE, kWindow1, kWindows},
    {"rc-write-window-2", IBV_QPT_RC, IBV_WR_RDMA_WRITE, kWindow2, kWindows},
    {"rc-read", IBV_QPT_RC, IBV_WR_RDMA_READ, kPlain, 0},
    {"rc-fetch-add", IBV_QPT_RC, IBV_WR_ATOMIC_FETCH_AND_ADD, kPlain, 0},
    {"rc-compare-swap", IBV_QPT_RC, IBV_WR_ATOMIC_CMP_AND_SWP, kPlain, 0},
    {"rc-atomic-write", IBV_QPT_RC, IBV_WR_ATOMIC_WRITE, kPlain, kAtomicWrite},
    {"uc-send", IBV_QPT_UC, IBV_WR_SEND, kPlain, 0},
    {"uc-send-imm", IBV_QPT_UC, IBV_WR_SEND_WITH_IMM, kPlain, 0},
    {"uc-write", IBV_QPT_UC, IBV_WR_RDMA_WRITE, kPlain, 0},
    {"uc-write-imm", IBV_QPT_UC, IBV_WR_RDMA_WRITE_WITH_IMM, kPlain, 0},
    {"ud-send", IBV_QPT_UD, IBV_WR_SEND, kPlain, 0},
    {"ud-send-imm", IBV_QPT_UD, IBV_WR_SEND_WITH_IMM, kPlain, 0},
};
enum { kOperationsCount = sizeof kOperations / sizeof *kOperations, kEnd = 255 };

// Both sides send a greeting over TCP before an operation.
struct greeting {
  uint32_t operation, qpn, rkey, features;
  uint64_t address;
  union ibv_gid gid;
};
// The answering side sends a verdict over TCP after each message.  The text is empty if the message
// was right.
struct verdict {
  char text[96];
};

static struct ibv_context* device;
static struct ibv_pd* pd;
static struct ibv_cq* cq;
static struct ibv_mr* mr;
static struct ibv_qp* qp;
static struct ibv_mw* mw;
static union ibv_gid gid;
static int gid_index = -1, tcp = -1;
static unsigned mtu;
static int is_lossy;
static uint32_t features;
static char memory[kGrhBytes + kBytesMax] __attribute__((aligned(8)));
static char failure[96];

static void die(const char* what) {
  fprintf(stderr, "matrix: %s: %s\n", what, strerror(errno));
  exit(2);
}
static void need(int good, const char* what) {
  if (!good) die(what);
}
// Records a failure if `holds` is false.  Does not replace an earlier failure.
static void expect(int holds, const char* what, long value) {
  if (!holds && failure[0] == '\0') snprintf(failure, sizeof failure, "%s (%ld)", what, value);
}

static void tcp_send(const void* bytes, size_t count) {
  need(write(tcp, bytes, count) == (ssize_t)count, "writing to the other end");
}
static void tcp_receive(void* bytes, size_t count) {
  need(recv(tcp, bytes, count, MSG_WAITALL) == (ssize_t)count, "reading from the other end");
}

static void open_device(const char* address) {
  struct in_addr ipv4;
  if (inet_pton(AF_INET, address, &ipv4) == 1) {
    gid.raw[10] = gid.raw[11] = 0xff;
    memcpy(gid.raw + 12, &ipv4, sizeof ipv4);
  } else {
    need(inet_pton(AF_INET6, address, &gid) == 1, address);
  }
  struct ibv_device** list = ibv_get_device_list(NULL);
  device = list != NULL && list[0] != NULL ? ibv_open_device(list[0]) : NULL;
  need(device != NULL, "opening the device");
  union ibv_gid entry;
  for (int i = 0; gid_index < 0 && ibv_query_gid(device, 1, i, &entry) == 0; ++i) {
    if (memcmp(&entry, &gid, sizeof entry) == 0) gid_index = i;
  }
  need(gid_index >= 0, "no such GID in the table");
  struct ibv_device_attr_ex attr;
  need(ibv_query_device_ex(device, NULL, &attr) == 0, "ibv_query_device_ex");
  const unsigned windows = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  if ((attr.orig_attr.device_cap_flags & windows) == windows) features |= kWindows;
  if ((attr.device_cap_flags_ex >> kAtomicWriteBit & 1) != 0) features |= kAtomicWrite;
  pd = ibv_alloc_pd(device);
  cq = pd == NULL ? NULL : ibv_create_cq(device, 16, NULL, NULL, 0);
  need(cq != NULL, "ibv_create_cq");
}

static void make_qp(const struct operation* operation) {
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
               IBV_ACCESS_REMOTE_ATOMIC;
  if (operation->variant != kPlain) access |= IBV_ACCESS_MW_BIND;
  mr = ibv_reg_mr(pd, memory, sizeof memory, access);
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = operation->type};
  qp = mr == NULL ? NULL : ibv_create_qp(pd, &init);
  need(qp != NULL, "ibv_create_qp");
}
static struct ibv_ah_attr path_to(const struct greeting* peer) {
  return (struct ibv_ah_attr){
      .is_global = 1,
      .port_num = 1,
      .grh = {.dgid = peer->gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}};
}
static void connect_qp(const struct greeting* peer) {
  const int is_rc = qp->qp_type == IBV_QPT_RC, is_ud = qp->qp_type == IBV_QPT_UD;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .port_num = 1,
                             .qkey = kQkey,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
                             .path_mtu = (enum ibv_mtu)mtu,
                             .dest_qp_num = peer->qpn,
                             .ah_attr = path_to(peer),
                             .max_rd_atomic = 1,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 12,
                             .timeout = 15,
                             .retry_cnt = 6,  // soft-RoCE retries for ever with 7
                             .rnr_retry = 7};
  if (is_rc) attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  int error = ibv_modify_qp(
      qp, &attr,
      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  attr.qp_state = IBV_QPS_RTR;
  int mask = IBV_QP_STATE;
  if (!is_ud) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (is_rc) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (error == 0) error = ibv_modify_qp(qp, &attr, mask);
  attr.qp_state = IBV_QPS_RTS;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (is_rc) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  if (error == 0) error = ibv_modify_qp(qp, &attr, mask);
  errno = error;
  need(error == 0, "ibv_modify_qp");
}
static void destroy_qp(void) {
  // Soft-RoCE waits for 20 s if a bound window outlives its QP.
  if (mw != NULL) need(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");
  mw = NULL;
  need(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
  need(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
}

static struct ibv_wc next_completion(const char* what) {
  struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  int count = 0;
  do {
    count = ibv_poll_cq(cq, 1, &wc);
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (count == 0 && (now.tv_sec - begin.tv_sec) * 1000 < kWaitMs);
  expect(count == 1, what, count);
  return wc;
}
static void post(struct ibv_send_wr wr) {
  struct ibv_send_wr* bad;
  errno = ibv_post_send(qp, &wr, &bad);
  expect(errno == 0, "ibv_post_send", errno);
}
static char byte_of(unsigned round, unsigned i) { return (char)(round * 31 + i * 7 + (i >> 8)); }
static void fill(unsigned round, unsigned bytes) {
  for (unsigned i = 0; i < bytes; ++i) memory[kGrhBytes + i] = byte_of(round, i);
}
static void compare(unsigned round, unsigned bytes, const char* where) {
  for (unsigned i = 0; i < bytes; ++i) {
    expect(memory[kGrhBytes + i] == byte_of(round, i), where, (long)i);
  }
}
static void await_bytes(unsigned round, unsigned bytes) {
  const volatile char* data = memory + kGrhBytes;
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  unsigned correct = 0;
  do {
    while (correct < bytes && data[correct] == byte_of(round, correct)) ++correct;
    // Polling lets the library receive packets.
    struct ibv_wc wc;
    expect(ibv_poll_cq(cq, 1, &wc) == 0, "an unexpected completion", 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (correct < bytes && (now.tv_sec - begin.tv_sec) * 1000 < kWaitMs);
}
static int is_send(const struct operation* operation) {
  return operation->opcode == IBV_WR_SEND || operation->opcode == IBV_WR_SEND_WITH_IMM ||
         operation->opcode == IBV_WR_SEND_WITH_INV;
}
static int has_imm(const struct operation* operation) {
  return operation->opcode == IBV_WR_SEND_WITH_IMM ||
         operation->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
static int is_atomic(const struct operation* operation) {
  return operation->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
         operation->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || operation->opcode == IBV_WR_ATOMIC_WRITE;
}
static uint64_t* first_word(void) { return (uint64_t*)(void*)(memory + kGrhBytes); }
static unsigned size_of(const struct operation* operation, unsigned round) {
  const unsigned m = 128u << mtu;
  const unsigned sizes[] = {1, m - 1, m, m + 1, 5 * m + 7, kBytesMax};
  if (is_atomic(operation)) return 8;
  return sizes[round % (operation->type == IBV_QPT_UD ? 3 : 6)];
}
static unsigned rounds_of(const struct operation* operation) {
  return operation->variant == kInvalidate ? 1 : 6 * kRounds;
}

// ---- the answering side -------------------------------------------------------------------------

// Binds a window unless `variant` is kPlain.  Returns the key that the peer has to use.
static uint32_t bind_window(enum variant variant) {
  if (variant == kPlain) return mr->rkey;
  mw = ibv_alloc_mw(pd, variant == kWindow1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
  need(mw != NULL, "ibv_alloc_mw");
  const struct ibv_mw_bind_info all = {.mr = mr,
                                       .addr = (uintptr_t)memory,
                                       .length = sizeof memory,
                                       .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  uint32_t rkey = ibv_inc_rkey(mw->rkey);
  if (variant == kWindow1) {
    struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = all};
    errno = ibv_bind_mw(qp, mw, &bind);
    need(errno == 0, "ibv_bind_mw");
    rkey = mw->rkey;
  } else {
    post((struct ibv_send_wr){.opcode = IBV_WR_BIND_MW,
                              .send_flags = IBV_SEND_SIGNALED,
                              .bind_mw = {.mw = mw, .rkey = rkey, .bind_info = all}});
  }
  const struct ibv_wc wc = next_completion("the bind");
  expect(wc.status == IBV_WC_SUCCESS, "the bind's status", wc.status);
  return rkey;
}
// Initialises the memory for a message, and posts a receive request if the message needs one.
static void prepare(const struct operation* operation, unsigned round) {
  memset(memory, 0, sizeof memory);
  if (operation->opcode == IBV_WR_RDMA_READ) fill(round, size_of(operation, round));
  if (is_atomic(operation)) *first_word() = 1000 + round;
  if (!is_send(operation) && !has_imm(operation)) return;
  // The data of a datagram comes after the space for its network header.
  const unsigned before = operation->type == IBV_QPT_UD ? kGrhBytes : 0;
  struct ibv_sge sge = {(uintptr_t)(memory + kGrhBytes - before), before + kBytesMax, mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  need(ibv_post_recv(qp, &wr, &bad) == 0, "ibv_post_recv");
}
static void check_message(const struct operation* operation, unsigned round, uint32_t rkey) {
  const unsigned bytes = size_of(operation, round);
  if (is_send(operation) || has_imm(operation)) {
    const unsigned before = operation->type == IBV_QPT_UD ? kGrhBytes : 0;
    const struct ibv_wc wc = next_completion("the receive");
    expect(wc.status == IBV_WC_SUCCESS, "the receive's status", wc.status);
    expect(wc.byte_len == bytes + before, "the receive's length", wc.byte_len);
    if (has_imm(operation)) {
      expect((wc.wc_flags & IBV_WC_WITH_IMM) != 0, "no immediate data", wc.wc_flags);
      expect(wc.imm_data == htonl(round), "immediate data", ntohl(wc.imm_data));
    }
    if (operation->variant == kInvalidate) {
      // Soft-RoCE sets the kernel's value of the flag, which differs from the value in verbs.h.
      const unsigned flags = IBV_WC_WITH_INV | 1 << 2;
      expect((wc.wc_flags & flags) != 0, "nothing invalidated", wc.wc_flags);
      expect(wc.invalidated_rkey == rkey, "another key invalidated", wc.invalidated_rkey);
    }
  }
  const uint64_t before_value = 1000 + round;
  if (operation->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    expect(*first_word() == before_value + 5, "the sum", (long)*first_word());
  } else if (operation->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    expect(*first_word() == (round % 2 == 0 ? 77 : before_value), "the value after the swap",
           (long)*first_word());
  } else if (operation->opcode != IBV_WR_RDMA_READ) {
    // No completion reports the arrival of an unreliable WRITE, so poll the memory.
    if (operation->type == IBV_QPT_UC && !is_send(operation)) await_bytes(round, bytes);
    compare(round, bytes, "byte received");
  }
}
static void send_verdict(void) {
  struct verdict verdict = {{0}};
  memcpy(verdict.text, failure, sizeof failure);
  tcp_send(&verdict, sizeof verdict);
}
// Checks that the WRITE with the old key has changed nothing.
static void check_old_key(const struct operation* operation) {
  struct greeting after_attempt;
  tcp_receive(&after_attempt, sizeof after_attempt);
  const unsigned bytes = size_of(operation, 0);
  compare(0, bytes, "written by the old key");
  for (unsigned i = bytes; i < kOldKeyBytes; ++i) {
    expect(memory[kGrhBytes + i] == 0, "written by the old key", (long)i);
  }
  send_verdict();
  memset(failure, 0, sizeof failure);
}
static void answer(void) {
  for (;;) {
    struct greeting peer,
        mine = {.gid = gid, .features = features, .address = (uintptr_t)memory + kGrhBytes};
    tcp_receive(&peer, sizeof peer);
    if (peer.operation == kEnd) return;
    const struct operation* operation = &kOperations[peer.operation % kOperationsCount];
    if ((operation->needs & ~(int)(features & peer.features)) != 0) {
      tcp_send(&mine, sizeof mine);
      continue;
    }
    make_qp(operation);
    connect_qp(&peer);
    mine.qpn = qp->qp_num;
    mine.rkey = bind_window(operation->variant == kInvalidate ? kWindow2 : operation->variant);
    for (unsigned round = 0; round < rounds_of(operation); ++round) {
      prepare(operation, round);
      tcp_send(&mine, sizeof mine);  // tells the other side that this side is ready
      struct greeting done;
      tcp_receive(&done, sizeof done);
      check_message(operation, round, mine.rkey);
      send_verdict();
      const int bad = failure[0] != '\0';
      memset(failure, 0, sizeof failure);
      if (bad) break;
    }
    if (operation->variant == kInvalidate) check_old_key(operation);
    destroy_qp();
  }
}

// ---- the asking side ----------------------------------------------------------------------------

static void run_round(const struct operation* operation, unsigned round,
                      const struct greeting* peer, struct ibv_ah* ah) {
  const unsigned bytes = size_of(operation, round);
  memset(memory, 0, sizeof memory);
  if (operation->opcode != IBV_WR_RDMA_READ) fill(round, bytes);
  struct ibv_sge sge = {(uintptr_t)(memory + kGrhBytes), bytes, mr->lkey};
  struct ibv_send_wr wr = {
      .sg_list = &sge, .num_sge = 1, .opcode = operation->opcode, .send_flags = IBV_SEND_SIGNALED};
  if (has_imm(operation)) wr.imm_data = htonl(round);
  if (operation->variant == kInvalidate) wr.invalidate_rkey = peer->rkey;
  if (operation->type == IBV_QPT_UD) {
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = peer->qpn;
    wr.wr.ud.remote_qkey = kQkey;
  } else if (is_atomic(operation) && operation->opcode != IBV_WR_ATOMIC_WRITE) {
    const int is_add = operation->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.wr.atomic.remote_addr = peer->address;
    wr.wr.atomic.rkey = peer->rkey;
    wr.wr.atomic.compare_add = is_add ? 5 : round % 2 == 0 ? 1000 + round : 1;
    wr.wr.atomic.swap = 77;
  } else if (!is_send(operation)) {
    wr.wr.rdma.remote_addr = peer->address;
    wr.wr.rdma.rkey = peer->rkey;
  }
  post(wr);
  const struct ibv_wc wc = next_completion("the request");
  expect(wc.status == IBV_WC_SUCCESS, "the request's status", wc.status);
  if (operation->opcode == IBV_WR_RDMA_READ) compare(round, bytes, "byte read");
  if (is_atomic(operation) && operation->opcode != IBV_WR_ATOMIC_WRITE) {
    expect(*first_word() == 1000 + round, "the old value", (long)*first_word());
  }
}
static void receive_verdict(struct verdict* verdict) {
  tcp_receive(verdict, sizeof *verdict);
  if (failure[0] == '\0') memcpy(failure, verdict->text, sizeof failure);
}
// Writes with the key of a window that was invalidated.  The peer must refuse the WRITE with a NAK,
// and then moves its QP to the error state.  If the line loses the NAK, the peer does not repeat
// the NAK, so the WRITE fails when all retries have been used.
static void try_old_key(const struct greeting* peer) {
  memset(memory, 0xee, sizeof memory);
  struct ibv_sge sge = {(uintptr_t)(memory + kGrhBytes), kOldKeyBytes, mr->lkey};
  post((struct ibv_send_wr){.sg_list = &sge,
                            .num_sge = 1,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .send_flags = IBV_SEND_SIGNALED,
                            .wr.rdma = {.remote_addr = peer->address, .rkey = peer->rkey}});
  const struct ibv_wc wc = next_completion("the WRITE by the old key");
  expect(wc.status == IBV_WC_REM_ACCESS_ERR || (is_lossy && wc.status == IBV_WC_RETRY_EXC_ERR),
         "the WRITE by the old key: status", wc.status);
}
static void run_operation(const struct operation* operation) {
  struct greeting peer,
      mine = {.operation = (uint32_t)(operation - kOperations), .gid = gid, .features = features};
  make_qp(operation);
  mine.qpn = qp->qp_num;
  tcp_send(&mine, sizeof mine);
  tcp_receive(&peer, sizeof peer);
  struct ibv_ah_attr path = path_to(&peer);
  struct ibv_ah* ah = operation->type == IBV_QPT_UD ? ibv_create_ah(pd, &path) : NULL;
  connect_qp(&peer);
  for (unsigned round = 0; round < rounds_of(operation); ++round) {
    if (round > 0) tcp_receive(&peer, sizeof peer);
    run_round(operation, round, &peer, ah);
    tcp_send(&mine, sizeof mine);
    struct verdict verdict;
    receive_verdict(&verdict);
    if (verdict.text[0] != '\0') break;
  }
  if (operation->variant == kInvalidate) {
    try_old_key(&peer);
    tcp_send(&mine, sizeof mine);
    struct verdict verdict;
    receive_verdict(&verdict);
  }
  if (ah != NULL) ibv_destroy_ah(ah);
  destroy_qp();
}
static int run_all(void) {
  int bad = 0;
  for (unsigned i = 0; i < kOperationsCount; ++i) {
    const struct operation* operation = &kOperations[i];
    if (is_lossy && operation->type != IBV_QPT_RC) continue;
    if ((operation->needs & ~(int)features) != 0) {
      printf("%s none: the requester's adapter lacks it\n", operation->name);
      continue;
    }
    struct greeting peer = {.operation = i, .gid = gid, .features = features};
    if (operation->needs != 0) {  // asks whether the other side has the feature
      struct greeting query = peer;
      query.features = 0;
      tcp_send(&query, sizeof query);
      tcp_receive(&peer, sizeof peer);
      if ((operation->needs & ~(int)peer.features) != 0) {
        printf("%s none: the responder's adapter lacks it\n", operation->name);
        continue;
      }
    }
    run_operation(operation);
    printf(failure[0] == '\0' ? "%s good\n" : "%s bad: %s\n", operation->name, failure);
    bad |= failure[0] != '\0';
    memset(failure, 0, sizeof failure);
  }
  const struct greeting end = {.operation = kEnd};
  tcp_send(&end, sizeof end);
  return bad;
}

int main(int argc, char** argv) {
  const int is_requester = argc >= 6 && strcmp(argv[1], "ask") == 0;
  errno = EINVAL;
  need(is_requester || (argc == 5 && strcmp(argv[1], "answer") == 0), "usage: see its source");
  mtu = (unsigned)atoi(argv[4]);
  need(mtu >= 1 && mtu <= 5, "the MTU is 1 to 5");
  open_device(argv[2]);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
  tcp = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  // If this socket listens, the accepted socket inherits the option.
  setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (is_requester) {
    need(inet_pton(AF_INET, argv[5], &at.sin_addr) == 1, argv[5]);
    need(connect(tcp, (struct sockaddr*)&at, sizeof at) == 0, "connect");
    is_lossy = argc == 7 && strcmp(argv[6], "rc") == 0;
    return run_all();
  }
  const int listener = tcp;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  need(bind(listener, (struct sockaddr*)&at, sizeof at) == 0 && listen(listener, 1) == 0, "listen");
  tcp = accept(listener, NULL, NULL);
  need(tcp >= 0, "accept");
  answer();
  return 0;
}
