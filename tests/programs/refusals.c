// Prints how calls of verbs and the RDMA CM refuse wrong arguments, wrong states and destinations
// without a route.  The test runs this program on Verbena and on Linux's soft-RoCE, and compares
// the outputs.
//
//   refusals PEER-IPV4 OWN-IPV4
//
// No host may have the address 10.77.0.99, which must be on the link of PEER-IPV4.
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

#include "move_qp.h"

static struct rdma_event_channel* channel;
static struct ibv_context* device;
static struct ibv_pd* pd;
static struct ibv_cq* cq;

static void print(const char* what, int error) { printf("%s: %s\n", what, strerror(error)); }
// Returns the errno of a call of librdmacm.
static int error_of(int result) { return result == 0 ? 0 : errno; }

union address {
  struct sockaddr any;
  struct sockaddr_in ipv4;
  struct sockaddr_in6 ipv6;
  struct sockaddr_storage storage;
};
static union address address_of(const char* text, uint16_t port) {
  union address address = {.ipv4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
  if (inet_pton(AF_INET, text, &address.ipv4.sin_addr) == 1) return address;
  address = (union address){.ipv6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
  CHECK(inet_pton(AF_INET6, text, &address.ipv6.sin6_addr) == 1);
  return address;
}
static union ibv_gid gid_of(const char* text) {
  union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
  if (inet_pton(AF_INET, text, gid.raw + 12) != 1) CHECK(inet_pton(AF_INET6, text, gid.raw) == 1);
  return gid;
}
static uint8_t index_of(union ibv_gid wanted) {
  union ibv_gid gid;
  for (int index = 0; ibv_query_gid(device, 1, index, &gid) == 0; ++index) {
    if (memcmp(&gid, &wanted, sizeof gid) == 0) return (uint8_t)index;
  }
  CHECK(!"the GID of the host's address");
  return 0;
}

static struct rdma_cm_id* make_id(enum rdma_port_space port_space) {
  struct rdma_cm_id* id = NULL;
  CHECK(rdma_create_id(channel, &id, NULL, port_space) == 0);
  return id;
}
// Takes the next event, which must be of this type, and returns its id.
static struct rdma_cm_id* expect(enum rdma_cm_event_type type) {
  struct rdma_cm_event* event = NULL;
  CHECK(rdma_get_cm_event(channel, &event) == 0);
  if (event->event != type) fprintf(stderr, "event: %s\n", rdma_event_str(event->event));
  CHECK(event->event == type);
  struct rdma_cm_id* const id = event->id;
  CHECK(rdma_ack_cm_event(event) == 0);
  return id;
}

// ---- destinations -------------------------------------------------------------------------------

static void print_resolve(const char* what, const char* to) {
  struct rdma_cm_id* const id = make_id(RDMA_PS_TCP);
  union address address = address_of(to, 7000);
  const int error = error_of(rdma_resolve_addr(id, NULL, &address.any, 1000));
  print(what, error);
  if (error == 0) {
    struct rdma_cm_event* event = NULL;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    printf("  %s, %s\n", rdma_event_str(event->event), strerror(-event->status));
    CHECK(rdma_ack_cm_event(event) == 0);
  }
  // The id may try again after a failure.
  CHECK(rdma_destroy_id(id) == 0);
}

static struct ibv_qp* make_qp(enum ibv_qp_type type) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = type};
  struct ibv_qp* const qp = ibv_create_qp(pd, &init);
  CHECK(qp != NULL);
  return qp;
}

static void print_path(const char* name, const char* from, const char* to) {
  char text[100];
  struct ibv_ah_attr path = {
      .is_global = 1,
      .port_num = 1,
      .grh = {.dgid = gid_of(to), .sgid_index = index_of(gid_of(from)), .hop_limit = 64}};
  struct ibv_qp* const qp = make_qp(IBV_QPT_RC);
  move_qp(qp, IBV_QPS_INIT, 0, path.grh.dgid);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .path_mtu = IBV_MTU_1024,
                             .dest_qp_num = 0x123,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 12,
                             .ah_attr = path};
  snprintf(text, sizeof text, "RC to RTR, %s", name);
  print(text, ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  CHECK(ibv_destroy_qp(qp) == 0);
  errno = 0;
  struct ibv_ah* const ah = ibv_create_ah(pd, &path);
  snprintf(text, sizeof text, "address handle, %s", name);
  print(text, ah == NULL ? errno : 0);
  if (ah != NULL) CHECK(ibv_destroy_ah(ah) == 0);
}

// ---- ids ----------------------------------------------------------------------------------------

static void print_listen(const char* name, enum rdma_port_space port_space) {
  struct rdma_cm_id* const id = make_id(port_space);
  const int error = error_of(rdma_listen(id, 1));
  printf("listen on an unbound id of %s: %s, %s, family %d\n", name, strerror(error),
         rdma_get_src_port(id) != 0 ? "a port" : "no port", rdma_get_local_addr(id)->sa_family);
  CHECK(rdma_destroy_id(id) == 0);
}

static void print_option(struct rdma_cm_id* id, const char* what, int level, int option,
                         unsigned value, size_t bytes) {
  char text[100];
  snprintf(text, sizeof text, "option %s, %u in %zu bytes", what, value, bytes);
  print(text, error_of(rdma_set_option(id, level, option, &value, bytes)));
}

static void print_options(void) {
  struct rdma_cm_id* const id = make_id(RDMA_PS_TCP);
  print_option(id, "TOS", RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 0x68, 1);
  print_option(id, "TOS", RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 0x68, 4);
  print_option(id, "TOS", RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 0x68, 2);
  print_option(id, "REUSEADDR", RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 1, 4);
  print_option(id, "REUSEADDR", RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 1, 1);
  print_option(id, "AFONLY", RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 1, 4);
  print_option(id, "AFONLY", RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 1, 1);
  print_option(id, "ACK_TIMEOUT", RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 20, 1);
  print_option(id, "ACK_TIMEOUT", RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 20, 4);
  print_option(id, "99", RDMA_OPTION_ID, 99, 1, 4);
  print_option(id, "99 of level IB", RDMA_OPTION_IB, 99, 1, 4);
  print_option(id, "0 of level 77", 77, 0, 1, 4);
  CHECK(rdma_destroy_id(id) == 0);
}

static void print_idle_calls(void) {
  struct rdma_cm_id* const id = make_id(RDMA_PS_TCP);
  print("notify of an idle id", error_of(rdma_notify(id, IBV_EVENT_COMM_EST)));
  print("notify of an idle id, another event", error_of(rdma_notify(id, IBV_EVENT_SQ_DRAINED)));
  print("disconnect of an idle id", error_of(rdma_disconnect(id)));
  CHECK(rdma_listen(id, 1) == 0);
  print("disconnect of a listening id", error_of(rdma_disconnect(id)));
  print("notify of a listening id", error_of(rdma_notify(id, IBV_EVENT_COMM_EST)));
  CHECK(rdma_destroy_id(id) == 0);
}

// Makes an id whose route to the listener is resolved, with a queue pair.
static struct rdma_cm_id* make_client(union address to) {
  struct ibv_qp_init_attr init = {
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
  struct rdma_cm_id* const id = make_id(RDMA_PS_TCP);
  CHECK(rdma_resolve_addr(id, NULL, &to.any, 1000) == 0);
  CHECK(expect(RDMA_CM_EVENT_ADDR_RESOLVED) == id);
  CHECK(rdma_resolve_route(id, 1000) == 0);
  CHECK(expect(RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
  CHECK(rdma_create_qp(id, NULL, &init) == 0);
  return id;
}

static void print_connection(const char* own) {
  const uint16_t port = 7301;
  union address to = address_of(own, port);
  struct rdma_cm_id* const listener = make_id(RDMA_PS_TCP);
  CHECK(rdma_bind_addr(listener, &to.any) == 0);
  CHECK(rdma_listen(listener, 4) == 0);
  print("disconnect of a listening id with a device", error_of(rdma_disconnect(listener)));
  struct rdma_cm_id* const client = make_client(to);
  print("disconnect before connect", error_of(rdma_disconnect(client)));
  print("notify before connect", error_of(rdma_notify(client, IBV_EVENT_COMM_EST)));

  struct ibv_device_attr limits;
  CHECK(ibv_query_device(client->verbs, &limits) == 0);
  const int depth = limits.max_qp_rd_atom, initiated = limits.max_qp_init_rd_atom;
  CHECK(depth < 254 && initiated < 254);
  struct rdma_conn_param param = {.responder_resources = (uint8_t)(depth + 1)};
  print("connect, too many responder resources", error_of(rdma_connect(client, &param)));
  param = (struct rdma_conn_param){.initiator_depth = (uint8_t)(initiated + 1)};
  print("connect, too large an initiator depth", error_of(rdma_connect(client, &param)));
  param = (struct rdma_conn_param){.responder_resources = 254, .initiator_depth = 254};
  print("connect, both 254", error_of(rdma_connect(client, &param)));
  param = (struct rdma_conn_param){.responder_resources = RDMA_MAX_RESP_RES,
                                   .initiator_depth = RDMA_MAX_INIT_DEPTH};
  print("connect, as much as possible", error_of(rdma_connect(client, &param)));
  print("notify while connecting", error_of(rdma_notify(client, IBV_EVENT_COMM_EST)));
  print("disconnect while connecting", error_of(rdma_disconnect(client)));
  print("connect again", error_of(rdma_connect(client, &param)));
  struct rdma_cm_id* const server = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
  struct ibv_qp_init_attr init = {
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
  CHECK(rdma_create_qp(server, NULL, &init) == 0);
  param = (struct rdma_conn_param){.responder_resources = (uint8_t)(depth + 1)};
  print("accept, too many responder resources", error_of(rdma_accept(server, &param)));
  param = (struct rdma_conn_param){.initiator_depth = (uint8_t)(initiated + 1)};
  print("accept, too large an initiator depth", error_of(rdma_accept(server, &param)));
  print("notify of a request", error_of(rdma_notify(server, IBV_EVENT_COMM_EST)));
  print("disconnect of a request", error_of(rdma_disconnect(server)));
  print("reject after disconnect", error_of(rdma_reject(server, NULL, 0)));
  expect(RDMA_CM_EVENT_REJECTED);
  rdma_destroy_qp(server);
  rdma_destroy_qp(client);
  CHECK(rdma_destroy_id(server) == 0);
  CHECK(rdma_destroy_id(client) == 0);
  CHECK(rdma_destroy_id(listener) == 0);
}

// ---- objects ------------------------------------------------------------------------------------

static void print_registrations(void) {
  static char memory[8192];
  char* const end = (char*)~(uintptr_t)0;
  errno = 0;
  CHECK(ibv_reg_mr(pd, end - 4095, 8192, IBV_ACCESS_LOCAL_WRITE) == NULL);
  print("region that wraps", errno);
  CHECK(ibv_reg_mr(pd, memory, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE) == NULL);
  print("region of all bytes", errno);
  CHECK(ibv_reg_mr(pd, end - 4095, 4096, 0) == NULL);
  print("region up to the end", errno);
  CHECK(ibv_reg_mr(pd, NULL, 4096, 0) == NULL);
  print("region at null", errno);
  CHECK(ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE) == NULL);
  print("region with forbidden rights", errno);
}

// Overwrites the handle of an object, makes a call, and restores the handle.
#define WITH_WRONG_HANDLE(object, what, call)                \
  do {                                                       \
    const uint32_t right_handle = (object)->handle;          \
    (object)->handle = 0x7ffffff0;                           \
    errno = 0;                                               \
    const int error = (call);                                \
    printf("wrong handle, %s: %s\n", what, strerror(error)); \
    (object)->handle = right_handle;                         \
  } while (0)
#define ERROR_IF_NULL(call) ((call) == NULL ? errno : 0)

static void print_wrong_handles(const char* own) {
  static char memory[4096];
  struct ibv_mr* const mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_qp* const qp = make_qp(IBV_QPT_UD);
  struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
  struct ibv_srq* const srq = ibv_create_srq(pd, &srq_init);
  struct ibv_mw* const mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  struct ibv_cq* const own_cq = ibv_create_cq(device, 4, NULL, NULL, 0);
  struct ibv_pd* const own_pd = ibv_alloc_pd(device);
  union ibv_gid group = gid_of("239.77.1.9");
  struct ibv_ah_attr path = {
      .is_global = 1,
      .port_num = 1,
      .grh = {.dgid = gid_of(own), .sgid_index = index_of(gid_of(own)), .hop_limit = 64}};
  struct ibv_ah* const ah = ibv_create_ah(pd, &path);
  CHECK(mr && qp && srq && mw && own_cq && own_pd && ah);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  struct ibv_qp_init_attr init = {
      .send_cq = own_cq,
      .recv_cq = own_cq,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  struct ibv_srq_attr srq_attr = {.srq_limit = 1};
  struct ibv_qp_init_attr queried;
  const int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

  WITH_WRONG_HANDLE(own_pd, "dealloc_pd", ibv_dealloc_pd(own_pd));
  WITH_WRONG_HANDLE(pd, "reg_mr", ERROR_IF_NULL(ibv_reg_mr(pd, memory, 64, 0)));
  WITH_WRONG_HANDLE(pd, "create_qp, domain", ERROR_IF_NULL(ibv_create_qp(pd, &init)));
  WITH_WRONG_HANDLE(own_cq, "create_qp, CQ", ERROR_IF_NULL(ibv_create_qp(pd, &init)));
  init.srq = srq;
  WITH_WRONG_HANDLE(srq, "create_qp, SRQ", ERROR_IF_NULL(ibv_create_qp(pd, &init)));
  WITH_WRONG_HANDLE(pd, "create_srq", ERROR_IF_NULL(ibv_create_srq(pd, &srq_init)));
  WITH_WRONG_HANDLE(pd, "create_ah", ERROR_IF_NULL(ibv_create_ah(pd, &path)));
  WITH_WRONG_HANDLE(pd, "alloc_mw", ERROR_IF_NULL(ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
  WITH_WRONG_HANDLE(mr, "dereg_mr", ibv_dereg_mr(mr));
  WITH_WRONG_HANDLE(mw, "dealloc_mw", ibv_dealloc_mw(mw));
  WITH_WRONG_HANDLE(own_cq, "resize_cq", ibv_resize_cq(own_cq, 8));
  WITH_WRONG_HANDLE(own_cq, "destroy_cq", ibv_destroy_cq(own_cq));
  WITH_WRONG_HANDLE(qp, "modify_qp", ibv_modify_qp(qp, &attr, to_init));
  WITH_WRONG_HANDLE(qp, "query_qp", ibv_query_qp(qp, &attr, IBV_QP_STATE, &queried));
  WITH_WRONG_HANDLE(qp, "attach_mcast", ibv_attach_mcast(qp, &group, 0));
  WITH_WRONG_HANDLE(qp, "detach_mcast", ibv_detach_mcast(qp, &group, 0));
  WITH_WRONG_HANDLE(qp, "destroy_qp", ibv_destroy_qp(qp));
  WITH_WRONG_HANDLE(srq, "modify_srq", ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT));
  WITH_WRONG_HANDLE(srq, "query_srq", ibv_query_srq(srq, &srq_attr));
  WITH_WRONG_HANDLE(srq, "destroy_srq", ibv_destroy_srq(srq));
  WITH_WRONG_HANDLE(ah, "destroy_ah", ibv_destroy_ah(ah));

  // With its own handle each object can be destroyed.
  CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_mw(mw) == 0 && ibv_destroy_qp(qp) == 0);
  CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(own_cq) == 0 && ibv_destroy_ah(ah) == 0);
  CHECK(ibv_dealloc_pd(own_pd) == 0);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  const char* const own = argv[2];
  int count = 0;
  struct ibv_context** const devices = rdma_get_devices(&count);
  CHECK(devices != NULL && count > 0);
  device = devices[0];
  channel = rdma_create_event_channel();
  pd = ibv_alloc_pd(device);
  cq = ibv_create_cq(device, 4, NULL, NULL, 0);
  CHECK(channel != NULL && pd != NULL && cq != NULL);
  print_resolve("resolve IPv4 without a route", "198.51.100.77");
  print_resolve("resolve IPv6 without a route", "fd00:1234::1");
  print_resolve("resolve an address that no host has", "10.77.0.99");
  print_resolve("resolve the address of a host", argv[1]);
  print_path("without a route", own, "198.51.100.77");
  print_path("to a host", own, argv[1]);
  print_listen("RDMA_PS_TCP", RDMA_PS_TCP);
  print_listen("RDMA_PS_UDP", RDMA_PS_UDP);
  print_options();
  print_idle_calls();
  print_connection(own);
  print_registrations();
  print_wrong_handles(own);
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
  rdma_destroy_event_channel(channel);
  rdma_free_devices(devices);
}
