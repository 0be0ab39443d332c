// Tests enhanced connection establishment (ECE): adapters of one vendor exchange options when they
// connect.  The ids use queue pairs that were made by libibverbs, not by librdmacm.
//
//   ece answer ADDRESS PORT    accepts one connection, and rejects the next because of its options
//   ece ask ADDRESS PORT       requests both connections
//
// Each side exits with 0 if it has received the options of the other side.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "own_qp.h"

// Both sides use the same vendor id, because an adapter does not answer options of another vendor.
enum { kVendor = 0x123456, kVendorOptionRefused = 35, kTimeoutMs = 5000 };
static const uint32_t kRequestOptions = 0x89abcdef, kReplyOptions = 7;

static struct rdma_event_channel* channel;

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "ece: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Returns the next event, which must be `wanted`.  Ignores RDMA_CM_EVENT_TIMEWAIT_EXIT.
static struct rdma_cm_event* next_event(enum rdma_cm_event_type wanted) {
  struct rdma_cm_event* event = NULL;
  need(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
  if (event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT) {
    rdma_ack_cm_event(event);
    return next_event(wanted);
  }
  if (event->event != wanted) {
    fprintf(stderr, "ece: %s, not %s, status %d\n", rdma_event_str(event->event),
            rdma_event_str(wanted), event->status);
    exit(1);
  }
  return event;
}
static void await_event(enum rdma_cm_event_type wanted) { rdma_ack_cm_event(next_event(wanted)); }

static void set_local_options(struct rdma_cm_id* id, uint32_t options) {
  struct ibv_ece ece = {.vendor_id = kVendor, .options = options};
  need(rdma_set_local_ece(id, &ece) == 0, "rdma_set_local_ece");
}
static void expect_remote_options(struct rdma_cm_id* id, uint32_t options) {
  struct ibv_ece ece = {0};
  need(rdma_get_remote_ece(id, &ece) == 0, "rdma_get_remote_ece");
  if (ece.vendor_id == kVendor && ece.options == options) return;
  fprintf(stderr, "ece: the peer has sent vendor %#x, options %#x\n", ece.vendor_id, ece.options);
  exit(1);
}

// Accepts the first request, and rejects the second one.
static void answer(struct sockaddr* address) {
  struct rdma_cm_id* listener = NULL;
  need(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_bind_addr(listener, address) == 0 && rdma_listen(listener, 4) == 0, "rdma_listen");
  for (int request = 0; request < 2; ++request) {
    struct rdma_cm_event* event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id* id = event->id;
    rdma_ack_cm_event(event);
    expect_remote_options(id, kRequestOptions);
    if (request == 1) {
      need(rdma_reject_ece(id, "why", 4) == 0, "rdma_reject_ece");
    } else {
      set_local_options(id, kReplyOptions);
      struct rdma_conn_param param = {.qp_num = make_own_qp(id)};
      need(rdma_accept(id, &param) == 0, "rdma_accept");
      await_event(RDMA_CM_EVENT_ESTABLISHED);
      await_event(RDMA_CM_EVENT_DISCONNECTED);
      need(rdma_disconnect(id) == 0, "rdma_disconnect");
    }
    need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
  }
}

static struct rdma_cm_id* connect_to(struct sockaddr* address) {
  struct rdma_cm_id* id = NULL;
  need(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_resolve_addr(id, NULL, address, kTimeoutMs) == 0, "rdma_resolve_addr");
  await_event(RDMA_CM_EVENT_ADDR_RESOLVED);
  need(rdma_resolve_route(id, kTimeoutMs) == 0, "rdma_resolve_route");
  await_event(RDMA_CM_EVENT_ROUTE_RESOLVED);
  set_local_options(id, kRequestOptions);
  struct rdma_conn_param param = {.qp_num = make_own_qp(id), .retry_count = 7};
  need(rdma_connect(id, &param) == 0, "rdma_connect");
  return id;
}
static void ask(struct sockaddr* address) {
  struct rdma_cm_id* id = connect_to(address);
  await_event(RDMA_CM_EVENT_CONNECT_RESPONSE);
  expect_remote_options(id, kReplyOptions);
  need(rdma_establish(id) == 0, "rdma_establish");
  need(rdma_disconnect(id) == 0, "rdma_disconnect");
  await_event(RDMA_CM_EVENT_DISCONNECTED);
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id");

  id = connect_to(address);
  struct rdma_cm_event* event = next_event(RDMA_CM_EVENT_REJECTED);
  if (event->status != kVendorOptionRefused || memcmp(event->param.conn.private_data, "why", 4)) {
    fprintf(stderr, "ece: rejected with reason %d\n", event->status);
    exit(1);
  }
  rdma_ack_cm_event(event);
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
}

int main(int argc, char** argv) {
  errno = EINVAL;
  need(argc == 4, "usage: see its source");
  struct addrinfo* addresses = NULL;
  need(getaddrinfo(argv[2], argv[3], NULL, &addresses) == 0, argv[2]);
  channel = rdma_create_event_channel();
  need(channel != NULL, "rdma_create_event_channel");
  if (strcmp(argv[1], "answer") == 0) {
    answer(addresses->ai_addr);
  } else {
    ask(addresses->ai_addr);
  }
  freeaddrinfo(addresses);
  puts("ece: ok");
  return 0;
}
