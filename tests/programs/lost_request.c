// Tests a server whose client destroys its id before the server accepts the request.  As with the
// kernel's RDMA CM, the id of the request must get no event, rdma_accept() must fail, and the next
// request must work.  An event would do harm: the context of such an id is still the listener's
// context, and servers such as UCX would use it as the context of a connection.
//
//   lost_request ADDRESS PORT    runs both ends, on an address of this host
#include <errno.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "own_qp.h"

enum { kTimeoutMs = 5000 };

static struct sockaddr* address;

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "lost_request: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Acknowledges the next event, which must be `wanted`, and returns its id.
static struct rdma_cm_id* next_event_id(struct rdma_event_channel* channel,
                                        enum rdma_cm_event_type wanted) {
  struct rdma_cm_event* event = NULL;
  need(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
  struct rdma_cm_id* id = event->id;
  if (event->event != wanted) {
    fprintf(stderr, "lost_request: %s, not %s\n", rdma_event_str(event->event),
            rdma_event_str(wanted));
    exit(1);
  }
  rdma_ack_cm_event(event);
  return id;
}

static struct rdma_cm_id* request_connection(struct rdma_event_channel* channel) {
  struct rdma_cm_id* id = NULL;
  need(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_resolve_addr(id, NULL, address, kTimeoutMs) == 0, "rdma_resolve_addr");
  next_event_id(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
  need(rdma_resolve_route(id, kTimeoutMs) == 0, "rdma_resolve_route");
  next_event_id(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
  struct rdma_conn_param param = {.qp_num = make_own_qp(id), .retry_count = 7};
  need(rdma_connect(id, &param) == 0, "rdma_connect");
  return id;
}

int main(int argc, char** argv) {
  errno = EINVAL;
  need(argc == 3, "usage: lost_request ADDRESS PORT");
  struct addrinfo* addresses = NULL;
  need(getaddrinfo(argv[1], argv[2], NULL, &addresses) == 0, argv[1]);
  address = addresses->ai_addr;
  struct rdma_event_channel* server = rdma_create_event_channel();
  struct rdma_event_channel* client = rdma_create_event_channel();
  need(server != NULL && client != NULL, "rdma_create_event_channel");
  struct rdma_cm_id* listener = NULL;
  need(rdma_create_id(server, &listener, &listener, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_bind_addr(listener, address) == 0 && rdma_listen(listener, 4) == 0, "rdma_listen");

  need(rdma_destroy_id(request_connection(client)) == 0, "rdma_destroy_id of the connecting id");
  struct rdma_cm_id* lost_id = next_event_id(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  // An event about the lost request would come before the event of the next request.
  struct rdma_cm_id* client_id = request_connection(client);
  struct rdma_cm_id* server_id = next_event_id(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  need(lost_id->context == &listener && server_id->context == &listener,
       "the context of a request");
  struct rdma_conn_param param = {.qp_num = make_own_qp(lost_id)};
  errno = 0;
  const int accepted = rdma_accept(lost_id, &param);
  const int error = errno;
  need(accepted == -1 && error == EINVAL, "rdma_accept of the lost request must fail with EINVAL");
  need(rdma_destroy_id(lost_id) == 0, "rdma_destroy_id of the lost request");

  param.qp_num = make_own_qp(server_id);
  need(rdma_accept(server_id, &param) == 0, "rdma_accept");
  next_event_id(client, RDMA_CM_EVENT_CONNECT_RESPONSE);
  need(rdma_establish(client_id) == 0, "rdma_establish");
  need(next_event_id(server, RDMA_CM_EVENT_ESTABLISHED) == server_id, "ESTABLISHED of another id");
  need(rdma_disconnect(client_id) == 0, "rdma_disconnect");
  need(next_event_id(server, RDMA_CM_EVENT_DISCONNECTED) == server_id,
       "DISCONNECTED of another id");
  need(rdma_destroy_id(server_id) == 0 && rdma_destroy_id(client_id) == 0, "rdma_destroy_id");
  need(rdma_destroy_id(listener) == 0, "rdma_destroy_id of the listener");
  puts("accepted the next request");
  return 0;
}
