// Runs one end of a reliable connection without a connection manager.  The test passes the
// connection data of each end to the other end, and may set the attributes of the path.
//
//   rc_end GID [NAME=VALUE]...
//
// The names are mtu (1 to 5), timeout (0 to 31), retry (0 to 7), class (0 to 255), hops (0 to 255)
// and label (0 to 1048575).  GID is an address in the host's GID table.  The program first prints
// "here DATA"; the other end must get this as "peer DATA".  Then it reads commands from its
// standard input, one on each line:
//
//   peer GID QPN PSN ADDRESS RKEY    prints "connected"
//   write BYTES                      writes BYTES to the peer's memory, reads and compares them;
//                                    prints "good", or "failed STATUS MILLISECONDS"
//   flow BYTES                       prints "flowing", and repeats "write" until a round fails;
//                                    then prints "failed STATUS MILLISECONDS"
//   count                            prints "count N", the number of good rounds
//   alternate GID PEER_GID TIMEOUT   loads the alternate path and arms it; prints "rearmed"
//   migrate                          migrates to the alternate path; prints "migrated"
//   path                             prints "path PEER_GID STATE"; STATE is 0 (migrated), 1 (rearm)
//                                    or 2 (armed)
//
// Prints "event NAME" for each asynchronous event.  The program ends when its standard input ends.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kBytesMax = 1 << 20, kLineMax = 256, kPauseMs = 5 };

static struct ibv_context* device;
static struct ibv_comp_channel* completions;
static struct ibv_cq* cq;
static struct ibv_qp* qp;
static struct ibv_mr* mr;
// The three parts are for data to send, for data that is read back, and for data from the peer.
static char memory[3 * kBytesMax];

static unsigned mtu = 3, timeout = 14, retry = 7, traffic_class, hops = 64, label;
static union ibv_gid gid, peer_gid;
static int gid_index = -1;
static uint32_t psn;
static uint64_t peer_address;
static uint32_t peer_key;

static unsigned bytes;  // size of the current round; 0 if no round is under way
static int is_flowing;  // set if another round follows
static int is_pausing;  // set during the pause between two rounds
static unsigned long good_rounds, rounds;
static struct timespec round_start;

static void die(const char* what, ...) {
  va_list list;
  va_start(list, what);
  fprintf(stderr, "rc_end: ");
  vfprintf(stderr, what, list);
  fprintf(stderr, ": %s\n", strerror(errno));
  va_end(list);
  exit(1);
}

static int parse_gid(const char* text, union ibv_gid* out) {
  struct in_addr four;
  if (inet_pton(AF_INET, text, &four) != 1) return inet_pton(AF_INET6, text, out) == 1;
  memset(out, 0, sizeof *out);
  out->raw[10] = out->raw[11] = 0xff;
  memcpy(out->raw + 12, &four, sizeof four);
  return 1;
}

static int index_of(const union ibv_gid* wanted) {
  struct ibv_port_attr port;
  if (ibv_query_port(device, 1, &port) != 0) die("ibv_query_port");
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    union ibv_gid entry;
    if (ibv_query_gid(device, 1, i, &entry) != 0) die("ibv_query_gid");
    if (memcmp(&entry, wanted, sizeof entry) == 0) return i;
  }
  die("no such GID in the table");
  return -1;
}

static struct ibv_ah_attr path_to(const union ibv_gid* peer, int index) {
  return (struct ibv_ah_attr){.is_global = 1,
                              .port_num = 1,
                              .grh = {.dgid = *peer,
                                      .sgid_index = (uint8_t)index,
                                      .flow_label = label,
                                      .traffic_class = (uint8_t)traffic_class,
                                      .hop_limit = (uint8_t)hops}};
}

static void make_objects(void) {
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  device = count > 0 ? ibv_open_device(list[0]) : NULL;
  struct ibv_pd* pd = device == NULL ? NULL : ibv_alloc_pd(device);
  completions = pd == NULL ? NULL : ibv_create_comp_channel(device);
  cq = completions == NULL ? NULL : ibv_create_cq(device, 16, NULL, completions, 0);
  mr = cq == NULL
           ? NULL
           : ibv_reg_mr(pd, memory, sizeof memory,
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  qp = mr == NULL ? NULL : ibv_create_qp(pd, &init);
  if (qp == NULL || ibv_req_notify_cq(cq, 0) != 0) die("making objects");
  gid_index = index_of(&gid);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .port_num = 1,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0) {
    die("to INIT");
  }
}

static void on_peer(const char* arguments) {
  char address[INET6_ADDRSTRLEN + 1];
  unsigned peer_qpn, peer_psn;
  if (sscanf(arguments, "%46s %x %x %lx %x", address, &peer_qpn, &peer_psn, &peer_address,
             &peer_key) != 5 ||
      !parse_gid(address, &peer_gid)) {
    die("cannot read the peer '%s'", arguments);
  }
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .path_mtu = (enum ibv_mtu)mtu,
                             .dest_qp_num = peer_qpn,
                             .rq_psn = peer_psn,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 12,
                             .ah_attr = path_to(&peer_gid, gid_index)};
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0) {
    die("to RTR");
  }
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = (uint8_t)timeout;
  attr.retry_cnt = (uint8_t)retry;
  attr.rnr_retry = 7;
  attr.sq_psn = psn;
  attr.max_rd_atomic = 1;
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0) {
    die("to RTS");
  }
  printf("connected\n");
}

static void on_alternate(const char* arguments) {
  char source[INET6_ADDRSTRLEN + 1], destination[INET6_ADDRSTRLEN + 1];
  unsigned alt_timeout;
  union ibv_gid from, to;
  errno = EINVAL;
  if (sscanf(arguments, "%46s %46s %u", source, destination, &alt_timeout) != 3 ||
      !parse_gid(source, &from) || !parse_gid(destination, &to)) {
    die("cannot read the path '%s'", arguments);
  }
  struct ibv_qp_attr attr = {.alt_ah_attr = path_to(&to, index_of(&from)),
                             .alt_port_num = 1,
                             .alt_timeout = (uint8_t)alt_timeout,
                             .path_mig_state = IBV_MIG_REARM};
  if (ibv_modify_qp(qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE) != 0) die("rearming");
  printf("rearmed\n");
}

static void on_migrate(void) {
  struct ibv_qp_attr attr = {.path_mig_state = IBV_MIG_MIGRATED};
  if (ibv_modify_qp(qp, &attr, IBV_QP_PATH_MIG_STATE) != 0) die("migrating");
  printf("migrated\n");
}

static void on_path(void) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  if (ibv_query_qp(qp, &attr, IBV_QP_AV | IBV_QP_PATH_MIG_STATE, &init) != 0) die("ibv_query_qp");
  char text[INET6_ADDRSTRLEN];
  inet_ntop(AF_INET6, &attr.ah_attr.grh.dgid, text, sizeof text);
  printf("path %s %d\n", text, (int)attr.path_mig_state);
}

static void post(enum ibv_wr_opcode opcode) {
  const char* local = opcode == IBV_WR_RDMA_WRITE ? memory : memory + kBytesMax;
  struct ibv_sge sge = {(uintptr_t)local, bytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = opcode,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = opcode,
                           .send_flags = IBV_SEND_SIGNALED,
                           .wr.rdma = {peer_address, peer_key}};
  struct ibv_send_wr* bad;
  errno = ibv_post_send(qp, &wr, &bad);
  if (errno != 0) die("ibv_post_send");
}

static void begin_round(void) {
  ++rounds;
  for (unsigned i = 0; i < bytes; ++i) memory[i] = (char)(i * 7 + rounds);
  memset(memory + kBytesMax, 0, bytes);
  clock_gettime(CLOCK_MONOTONIC, &round_start);
  post(IBV_WR_RDMA_WRITE);
}

static void on_completion(const struct ibv_wc* wc) {
  if (wc->status != IBV_WC_SUCCESS) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf(
        "failed %d %ld\n", (int)wc->status,
        (now.tv_sec - round_start.tv_sec) * 1000 + (now.tv_nsec - round_start.tv_nsec) / 1000000);
    bytes = 0;
    is_flowing = 0;
    return;
  }
  if (wc->wr_id == IBV_WR_RDMA_WRITE) return post(IBV_WR_RDMA_READ);
  errno = 0;
  if (memcmp(memory, memory + kBytesMax, bytes) != 0) die("round %lu: the data differs", rounds);
  ++good_rounds;
  if (is_flowing) {
    is_pausing = 1;
    return;
  }
  bytes = 0;
  printf("good\n");
}

static void on_completions(void) {
  struct ibv_cq* event_cq;
  void* context;
  if (ibv_get_cq_event(completions, &event_cq, &context) != 0) die("ibv_get_cq_event");
  ibv_ack_cq_events(event_cq, 1);
  if (ibv_req_notify_cq(cq, 0) != 0) die("ibv_req_notify_cq");
  struct ibv_wc wc;
  int count;
  while ((count = ibv_poll_cq(cq, 1, &wc)) == 1) on_completion(&wc);
  if (count < 0) die("ibv_poll_cq");
}

static void on_async(void) {
  struct ibv_async_event event;
  if (ibv_get_async_event(device, &event) != 0) die("ibv_get_async_event");
  printf("event %s\n", ibv_event_type_str(event.event_type));
  ibv_ack_async_event(&event);
}

static void on_command(const char* line) {
  if (strncmp(line, "peer ", 5) == 0) return on_peer(line + 5);
  if (strncmp(line, "alternate ", 10) == 0) return on_alternate(line + 10);
  if (strcmp(line, "migrate") == 0) return on_migrate();
  if (strcmp(line, "path") == 0) return on_path();
  if (strcmp(line, "count") == 0) {
    printf("count %lu\n", good_rounds);
    return;
  }
  unsigned size = 0;
  const int is_flow = sscanf(line, "flow %u", &size) == 1;
  errno = EINVAL;
  if ((!is_flow && sscanf(line, "write %u", &size) != 1) || size == 0 || size > kBytesMax ||
      bytes != 0) {
    die("cannot do '%s'", line);
  }
  bytes = size;
  is_flowing = is_flow;
  if (is_flow) printf("flowing\n");
  begin_round();
}

// Reads input and executes the command on each line.  Returns 0 at the end of the input.
static int on_input(void) {
  static char text[kLineMax];
  static size_t length;
  const ssize_t count = read(STDIN_FILENO, text + length, sizeof text - length);
  if (count <= 0) return 0;
  length += (size_t)count;
  char* end;
  while ((end = memchr(text, '\n', length)) != NULL) {
    *end = '\0';
    on_command(text);
    length -= (size_t)(end + 1 - text);
    memmove(text, end + 1, length);
  }
  if (length == sizeof text) die("a line is too long");
  return 1;
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  errno = EINVAL;
  if (argc < 2 || !parse_gid(argv[1], &gid)) die("usage: rc_end GID [mtu=N] ...: see its source");
  for (int i = 2; i < argc; ++i) {
    if (sscanf(argv[i], "mtu=%u", &mtu) + sscanf(argv[i], "timeout=%u", &timeout) +
            sscanf(argv[i], "retry=%u", &retry) + sscanf(argv[i], "class=%u", &traffic_class) +
            sscanf(argv[i], "hops=%u", &hops) + sscanf(argv[i], "label=%u", &label) !=
        1) {
      die("cannot read '%s'", argv[i]);
    }
  }
  make_objects();
  psn = (uint32_t)getpid() & 0xffffff;
  printf("here %s %x %x %lx %x\n", argv[1], qp->qp_num, psn,
         (unsigned long)(uintptr_t)(memory + 2 * kBytesMax), mr->rkey);
  for (;;) {
    struct pollfd fds[3] = {{.fd = STDIN_FILENO, .events = POLLIN},
                            {.fd = device->async_fd, .events = POLLIN},
                            {.fd = completions->fd, .events = POLLIN}};
    const int ready = poll(fds, 3, is_pausing ? kPauseMs : -1);
    if (ready < 0) die("poll");
    if (ready == 0) {
      is_pausing = 0;
      begin_round();
    }
    if (fds[2].revents != 0) on_completions();
    if (fds[1].revents != 0) on_async();
    if (fds[0].revents != 0 && !on_input()) return 0;
  }
}
