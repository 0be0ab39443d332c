// Makes very many connections.
//   storm server PORT BACKLOG                         accepts all requests until it is killed
//   storm client ADDRESS PORT TOTAL AT_ONCE [FILE]    makes and ends TOTAL connections
// The client has AT_ONCE connections at a time.
// The server prints "serving" after its first connection.
// The client prints a line for each tenth of its connections.  At the end it prints the results of
// all attempts.  It repeats attempts that are rejected or not answered.  It gives up after a minute
// without events.  With FILE, a FIFO, the client handles no events after half of its connections,
// until it has read a byte from the FIFO.
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kNoEventMs = 60000, kResolveMs = 5000, kQueueEntries = 16 };

static struct rdma_event_channel* channel;
static long made;
static struct ibv_pd* pd;
static struct ibv_cq* cq;

static void die(const char* what) {
  fprintf(stderr, "storm: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Creates a queue pair.  All queue pairs share a protection domain and a completion queue.  The
// queue is always empty, because no requests are posted.
static int make_qp(struct rdma_cm_id* id) {
  if (pd == NULL) {
    pd = ibv_alloc_pd(id->verbs);
    cq = ibv_create_cq(id->verbs, kQueueEntries, NULL, NULL, 0);
    if (pd == NULL || cq == NULL) die("resources");
  }
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  return rdma_create_qp(id, pd, &init);
}

static void destroy(struct rdma_cm_id* id) {
  if (id->qp != NULL) rdma_destroy_qp(id);
  if (rdma_destroy_id(id) != 0) die("rdma_destroy_id");
}

static struct rdma_conn_param parameters(void) {
  return (struct rdma_conn_param){.retry_count = 7, .rnr_retry_count = 7};
}

static int serve(const char* port, int backlog) {
  struct rdma_cm_id* listener = NULL;
  struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
  if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) != 0 ||
      rdma_bind_addr(listener, (struct sockaddr*)&any) != 0 ||
      rdma_listen(listener, backlog) != 0) {
    die("listen");
  }
  struct rdma_cm_event* event = NULL;
  while (rdma_get_cm_event(channel, &event) == 0) {
    struct rdma_cm_id* id = event->id;
    const enum rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);
    struct rdma_conn_param param = parameters();
    switch (type) {
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        // If the peer has ended after its request, rdma_accept() fails or an event follows.
        if (make_qp(id) != 0) die("rdma_create_qp");
        if (rdma_accept(id, &param) != 0) destroy(id);
        break;
      case RDMA_CM_EVENT_ESTABLISHED:
        if (++made == 1) puts("serving");
        break;
      case RDMA_CM_EVENT_DISCONNECTED: rdma_disconnect(id);  // fall through
      case RDMA_CM_EVENT_CONNECT_ERROR:
      case RDMA_CM_EVENT_UNREACHABLE:
      case RDMA_CM_EVENT_REJECTED: destroy(id); break;
      default: break;
    }
  }
  die("rdma_get_cm_event");
  return 1;
}

static struct addrinfo* peer;
static const char* fifo_path;  // NULL if the client does not stop
static long total, attempts, ended, refused, unanswered, failed, alive;

static void await_byte(void) {
  FILE* const fifo = fopen(fifo_path, "r");
  if (fifo == NULL || fgetc(fifo) == EOF) die(fifo_path);
  fclose(fifo);
}

static void begin_attempt(void) {
  struct rdma_cm_id* id = NULL;
  if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) != 0) die("rdma_create_id");
  if (rdma_resolve_addr(id, NULL, peer->ai_addr, kResolveMs) != 0) die("rdma_resolve_addr");
  ++attempts, ++alive;
}

// Counts the end of an attempt or of a connection in `*count`, and destroys the id.
static void finish(struct rdma_cm_id* id, long* count) {
  ++*count, --alive;
  destroy(id);
}

static void on_event(struct rdma_cm_id* id, enum rdma_cm_event_type type, int status) {
  struct rdma_conn_param param = parameters();
  const int was_established = id->context != NULL;
  if (was_established && type != RDMA_CM_EVENT_DISCONNECTED &&
      type != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
    printf("an established connection got %s, status %d\n", rdma_event_str(type), status);
    return finish(id, &failed);
  }
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (rdma_resolve_route(id, kResolveMs) != 0) die("rdma_resolve_route");
      return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (make_qp(id) != 0) die("rdma_create_qp");
      if (rdma_connect(id, &param) != 0) die("rdma_connect");
      return;
    case RDMA_CM_EVENT_ESTABLISHED:
      id->context = id;  // marks the connection as established
      if (++made % (total / 10) == 0) printf("%ld made\n", made);
      if (made == total / 2 && fifo_path != NULL) await_byte();
      // If the connection has ended already, this call fails and an event follows.
      rdma_disconnect(id);
      return;
    case RDMA_CM_EVENT_DISCONNECTED:
      if (!was_established) printf("a connection ended before it was established\n");
      return finish(id, was_established ? &ended : &failed);
    case RDMA_CM_EVENT_REJECTED:
      if (refused % (total / 10) == 0) printf("refused, reason %d\n", status);
      return finish(id, &refused);
    case RDMA_CM_EVENT_UNREACHABLE: return finish(id, &unanswered);
    case RDMA_CM_EVENT_TIMEWAIT_EXIT: return;
    default: printf("event %s\n", rdma_event_str(type)); return finish(id, &failed);
  }
}

static int run_client(long at_once) {
  while (ended < total) {
    while (alive < at_once && alive + ended < total) begin_attempt();
    struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
    const int ready = poll(&readable, 1, kNoEventMs);
    if (ready < 0 && errno != EINTR) die("poll");
    if (ready == 0) {
      printf("no events: %ld made, %ld ended, %ld alive\n", made, ended, alive);
      return 1;
    }
    struct rdma_cm_event* event = NULL;
    if (rdma_get_cm_event(channel, &event) != 0) die("rdma_get_cm_event");
    struct rdma_cm_id* id = event->id;
    const enum rdma_cm_event_type type = event->event;
    const int status = event->status;
    rdma_ack_cm_event(event);
    on_event(id, type, status);
  }
  printf("attempts %ld made %ld ended %ld refused %ld unanswered %ld failed %ld alive %ld\n",
         attempts, made, ended, refused, unanswered, failed, alive);
  return failed == 0 ? 0 : 1;
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  channel = rdma_create_event_channel();
  if (channel == NULL) die("rdma_create_event_channel");
  if (argc == 4 && strcmp(argv[1], "server") == 0) return serve(argv[2], atoi(argv[3]));
  if ((argc != 6 && argc != 7) || strcmp(argv[1], "client") != 0 || atol(argv[4]) < 10) {
    fprintf(stderr,
            "usage: storm server PORT BACKLOG | storm client ADDRESS PORT TOTAL AT_ONCE [FILE]\n");
    return 2;
  }
  if (getaddrinfo(argv[2], argv[3], NULL, &peer) != 0) die(argv[2]);
  total = atol(argv[4]);
  fifo_path = argv[6];  // NULL if argc is 6
  return run_client(atol(argv[5]));
}
