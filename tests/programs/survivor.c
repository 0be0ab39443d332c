// Runs a server or a client, which send a message back and forth and survive the death of the
// agent.  When the device is removed (IBV_EVENT_DEVICE_FATAL and RDMA_CM_EVENT_DEVICE_REMOVAL) they
// destroy their connections and begin a new round, as if an adapter had been unplugged and plugged
// in again.  All rounds use the same protection domain, memory region, completion queue and open
// device.
//
//   survivor server PORT
//   survivor client ADDRESS PORT
//
// Prints "connected ROUND" for each connection.  Prints "heard ROUND MILLISECONDS" when an event
// has reported the removal of the device; MILLISECONDS is the time of the clock.  SIGTERM ends the
// program cleanly.  The program fails if an object cannot be destroyed.
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kBytes = 4096, kReceives = 2, kTimeoutMs = 5000, kRetryMs = 20 };

static volatile sig_atomic_t should_stop;

// These objects last for all rounds.
static struct ibv_pd* pd;
static struct ibv_mr* mr;
static struct ibv_comp_channel* completions;
static struct ibv_cq* cq;
static struct ibv_context* device;
static char memory[(kReceives + 1) * kBytes];

// These objects are for one round.
static int is_server;
static struct sockaddr_in address;
static unsigned round_number = 1;
static struct rdma_event_channel* channel;
static struct rdma_cm_id* listener;
static struct rdma_cm_id* connection;
static int is_connected, is_fatal, is_removed;

static void on_signal(int number) {
  (void)number;
  should_stop = 1;
}

static void die(const char* what, ...) {
  va_list list;
  va_start(list, what);
  fprintf(stderr, "survivor: round %u: ", round_number);
  vfprintf(stderr, what, list);
  fprintf(stderr, ": %s\n", strerror(errno));
  va_end(list);
  exit(1);
}

static void post_receive(unsigned slot) {
  struct ibv_sge sge = {(uintptr_t)(memory + (slot + 1) * kBytes), kBytes, mr->lkey};
  struct ibv_recv_wr wr = {
      .wr_id = (uint64_t)round_number << 32 | slot, .sg_list = &sge, .num_sge = 1};
  struct ibv_recv_wr* bad;
  if (ibv_post_recv(connection->qp, &wr, &bad) != 0) die("ibv_post_recv");
}

static void post_send(void) {
  struct ibv_sge sge = {(uintptr_t)memory, kBytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = (uint64_t)round_number << 32 | kReceives,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad;
  ++*(unsigned*)memory;
  // The call fails after a disconnect, which an event reports.
  (void)ibv_post_send(connection->qp, &wr, &bad);
}

// Handles the failure of a call.  Returns -1 if an event reports that the device was removed.
// Otherwise ends the program.
static int device_removed_or_die(const char* what) {
  const int error = errno;
  struct pollfd pending = {.fd = device == NULL ? -1 : device->async_fd, .events = POLLIN};
  if (device != NULL && (is_fatal || poll(&pending, 1, kTimeoutMs) == 1)) return -1;
  errno = error;
  die("%s", what);
  return -1;
}

static int make_qp(struct rdma_cm_id* id) {
  if (pd == NULL) {
    device = id->verbs;
    pd = ibv_alloc_pd(device);
    mr = pd == NULL ? NULL
                    : ibv_reg_mr(pd, memory, sizeof memory,
                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    completions = ibv_create_comp_channel(device);
    cq = completions == NULL ? NULL : ibv_create_cq(device, 256, NULL, completions, 0);
    if (mr == NULL || cq == NULL || ibv_req_notify_cq(cq, 0) != 0) die("making objects");
  }
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  if (rdma_create_qp(id, pd, &init) != 0) return device_removed_or_die("rdma_create_qp");
  connection = id;
  for (unsigned slot = 0; slot < kReceives; ++slot) post_receive(slot);
  return 0;
}

static void destroy_connection(void) {
  if (connection == NULL) return;
  if (connection->qp != NULL) rdma_destroy_qp(connection);
  if (rdma_destroy_id(connection) != 0) die("rdma_destroy_id");
  connection = NULL;
  is_connected = 0;
}

// Destroys all objects of the round, which must work even after the removal of the device.
static void destroy_round(void) {
  destroy_connection();
  if (listener != NULL && rdma_destroy_id(listener) != 0) die("rdma_destroy_id of the listener");
  listener = NULL;
  if (channel != NULL) rdma_destroy_event_channel(channel);
  channel = NULL;
  is_removed = is_fatal = 0;
}

static int begin_server(void) {
  if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) != 0)
    return device_removed_or_die("rdma_create_id");
  if (rdma_bind_addr(listener, (struct sockaddr*)&address) != 0)
    return device_removed_or_die("rdma_bind_addr");
  if (rdma_listen(listener, 4) != 0) return device_removed_or_die("rdma_listen");
  return 0;
}

static int begin_client(void) {
  if (rdma_create_id(channel, &connection, NULL, RDMA_PS_TCP) != 0)
    return device_removed_or_die("rdma_create_id");
  if (rdma_resolve_addr(connection, NULL, (struct sockaddr*)&address, 2000) != 0) {
    return device_removed_or_die("rdma_resolve_addr");
  }
  return 0;
}

static int begin_round(void) {
  channel = rdma_create_event_channel();
  if (channel == NULL) return device_removed_or_die("rdma_create_event_channel");
  return is_server ? begin_server() : begin_client();
}

static int on_request(struct rdma_cm_id* id) {
  destroy_connection();  // the peer has begun a new round
  connection = id;
  if (make_qp(id) != 0) return -1;
  struct rdma_conn_param param = {
      .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7};
  return rdma_accept(id, &param) == 0 ? 0 : device_removed_or_die("rdma_accept");
}

static int on_established(void) {
  is_connected = 1;
  printf("connected %u\n", round_number);
  if (!is_server) post_send();
  return 0;
}

// Handles the end or the failure of a connection.  The server waits for the next connection, and
// the client connects again.
static int on_connection_end(void) {
  destroy_connection();
  if (is_server) return 0;
  poll(NULL, 0, kRetryMs);
  return begin_client();
}

static int on_cm_event(void) {
  struct rdma_cm_event* event;
  if (rdma_get_cm_event(channel, &event) != 0) die("rdma_get_cm_event");
  const enum rdma_cm_event_type type = event->event;
  struct rdma_cm_id* id = event->id;
  rdma_ack_cm_event(event);
  struct rdma_conn_param param = {
      .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
  if (id != connection && id != listener && type != RDMA_CM_EVENT_CONNECT_REQUEST)
    die("an event of an unknown id");
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      return rdma_resolve_route(id, 2000) == 0 ? 0 : device_removed_or_die("rdma_resolve_route");
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (make_qp(id) != 0) return -1;
      return rdma_connect(id, &param) == 0 ? 0 : device_removed_or_die("rdma_connect");
    case RDMA_CM_EVENT_CONNECT_REQUEST: return on_request(id);
    case RDMA_CM_EVENT_ESTABLISHED: return on_established();
    case RDMA_CM_EVENT_DEVICE_REMOVAL: is_removed |= id == connection; return 0;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT: return 0;
    default: return on_connection_end();
  }
}

static void on_completions(void) {
  struct ibv_cq* event_cq;
  void* context;
  if (ibv_get_cq_event(completions, &event_cq, &context) != 0) die("ibv_get_cq_event");
  ibv_ack_cq_events(event_cq, 1);
  if (ibv_req_notify_cq(cq, 0) != 0) die("ibv_req_notify_cq");
  struct ibv_wc wc;
  int count;
  while ((count = ibv_poll_cq(cq, 1, &wc)) == 1) {
    const unsigned slot = (unsigned)wc.wr_id;
    if (wc.wr_id >> 32 != round_number || wc.status != IBV_WC_SUCCESS || slot >= kReceives)
      continue;
    if (connection == NULL || connection->qp == NULL || wc.qp_num != connection->qp->qp_num)
      continue;
    post_receive(slot);
    post_send();
  }
  if (count < 0) die("ibv_poll_cq");
}

static void on_async(void) {
  struct ibv_async_event event;
  if (ibv_get_async_event(device, &event) != 0) die("ibv_get_async_event");
  if (event.event_type == IBV_EVENT_DEVICE_FATAL) is_fatal = 1;
  ibv_ack_async_event(&event);
}

// Reads the pending events of the connection manager, such as DEVICE_REMOVAL.
static void drain_channel(void) {
  struct pollfd pending = {.fd = channel == NULL ? -1 : channel->fd, .events = POLLIN};
  while (poll(&pending, 1, 0) == 1) {
    struct rdma_cm_event* event;
    if (rdma_get_cm_event(channel, &event) != 0) die("rdma_get_cm_event");
    struct rdma_cm_id* id = event->id;
    const enum rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_DEVICE_REMOVAL) is_removed |= id == connection;
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST && rdma_destroy_id(id) != 0) die("rdma_destroy_id");
  }
}

// Sends messages until the device is removed.  Then checks the events and the states of all
// objects.
static void run_round(void) {
  int failed = begin_round();
  while (!should_stop && !is_fatal) {
    struct pollfd fds[3] = {{.fd = device == NULL ? -1 : device->async_fd, .events = POLLIN},
                            {.fd = completions == NULL ? -1 : completions->fd, .events = POLLIN},
                            {.fd = channel == NULL ? -1 : channel->fd, .events = POLLIN}};
    const int ready = poll(fds, 3, failed ? kTimeoutMs : -1);
    if (ready < 0 && errno != EINTR) die("poll");
    if (ready == 0) die("a call failed, although the device was not removed");
    if (ready < 0) continue;
    if (fds[0].revents != 0) on_async();
    if (is_fatal) break;
    if (fds[1].revents != 0) on_completions();
    if (fds[2].revents != 0 && !failed && on_cm_event() != 0) failed = 1;
  }
  if (should_stop) return;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  printf("heard %u %lld\n", round_number, (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
  drain_channel();
  if (is_connected && !is_removed) die("the connection's id got no DEVICE_REMOVAL event");
  if (connection != NULL && connection->qp != NULL) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    if (ibv_query_qp(connection->qp, &attr, IBV_QP_STATE, &init) != 0) die("ibv_query_qp");
    if (attr.qp_state != IBV_QPS_ERR) die("after the removal a QP is in state %d", attr.qp_state);
  }
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  is_server = argc == 3 && strcmp(argv[1], "server") == 0;
  if (!is_server && !(argc == 4 && strcmp(argv[1], "client") == 0)) {
    fprintf(stderr, "usage: survivor server PORT | survivor client ADDRESS PORT\n");
    return 2;
  }
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGTERM, &action, NULL);
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)atoi(argv[argc - 1]));
  if (!is_server) inet_pton(AF_INET, argv[2], &address.sin_addr);

  for (; !should_stop; ++round_number) {
    run_round();
    if (should_stop && connection != NULL && is_connected) rdma_disconnect(connection);
    destroy_round();
  }
  if (pd == NULL) return 0;
  if (ibv_destroy_cq(cq) != 0 || ibv_destroy_comp_channel(completions) != 0) die("ibv_destroy_cq");
  if (ibv_dereg_mr(mr) != 0 || ibv_dealloc_pd(pd) != 0) die("ibv_dereg_mr");
  return 0;
}
