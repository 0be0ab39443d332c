// Uses paths and services of an InfiniBand subnet by functions of librdmacm.  The service id of a
// server is 0x106PPPP, with its port PPPP in hexadecimal.
//
//   subnet_services serve PORT COUNT      accepts COUNT connections at the GID of the first port
//   subnet_services connect SERVICE       finds a service by its name or id, and connects to it
//   subnet_services sync SERVICE          does the same with a synchronous id
//   subnet_services lookup SERVICE        prints what rdma_getaddrinfo() finds
//   subnet_services path IP PORT          connects by a path that the program sets: the path of the
//                                         subnet with another packet life time
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/ib.h>
#include <infiniband/sa.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// These are values that Debian's header does not have: an event and a flag.
enum { kAddrInfoResolved = 16, kRaiSa = 0x10 };
enum { kTimeoutMs = 5000, kOwnPacketLifeTime = 15 };

static struct rdma_event_channel* channel;
// Debian's header does not declare these two functions of rdma-core 60.
static int (*resolve_addrinfo)(struct rdma_cm_id*, const char*, const char*,
                               const struct rdma_addrinfo*);
static int (*query_addrinfo)(struct rdma_cm_id*, struct rdma_addrinfo**);

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "subnet_services: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Acknowledges the next event, which must be `wanted`, and returns its id.
static struct rdma_cm_id* expect_event(int wanted) {
  struct rdma_cm_event* event = NULL;
  need(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
  if ((int)event->event != wanted) {
    fprintf(stderr, "subnet_services: %s, status %d\n", rdma_event_str(event->event),
            event->status);
    exit(1);
  }
  struct rdma_cm_id* id = event->id;
  rdma_ack_cm_event(event);
  return id;
}

// Returns the GID of the first device's first port, with this service id.
static struct sockaddr_ib own_address(uint64_t service_id) {
  struct sockaddr_ib address = {.sib_family = AF_IB, .sib_pkey = htobe16(0xffff)};
  struct ibv_device** devices = ibv_get_device_list(NULL);
  need(devices != NULL && devices[0] != NULL, "no device");
  struct ibv_context* context = ibv_open_device(devices[0]);
  need(context != NULL, "ibv_open_device");
  need(ibv_query_gid(context, 1, 0, (union ibv_gid*)&address.sib_addr) == 0, "ibv_query_gid");
  ibv_close_device(context);
  ibv_free_device_list(devices);
  address.sib_sid = htobe64(service_id);
  address.sib_sid_mask = service_id == 0 ? 0 : ~(__be64)0;
  return address;
}

static struct rdma_cm_id* make_bound_id(uint64_t service_id, int is_sync) {
  struct rdma_cm_id* id = NULL;
  struct sockaddr_ib address = own_address(service_id);
  need(rdma_create_id(is_sync ? NULL : channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_bind_addr(id, (struct sockaddr*)&address) == 0, "rdma_bind_addr");
  return id;
}

static void make_qp(struct rdma_cm_id* id) {
  struct ibv_qp_init_attr attr = {
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  need(rdma_create_qp(id, NULL, &attr) == 0, "rdma_create_qp");
}

static void serve(uint16_t port, int count) {
  struct rdma_cm_id* listener = make_bound_id((uint64_t)RDMA_PS_TCP << 16 | port, 0);
  need(rdma_listen(listener, 8) == 0, "rdma_listen");
  puts("listens");
  fflush(stdout);
  struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
  for (; count > 0; --count) {
    struct rdma_cm_id* id = expect_event(RDMA_CM_EVENT_CONNECT_REQUEST);
    make_qp(id);
    need(rdma_accept(id, &param) == 0, "rdma_accept");
    expect_event(RDMA_CM_EVENT_ESTABLISHED);
    expect_event(RDMA_CM_EVENT_DISCONNECTED);
    rdma_disconnect(id);
    rdma_destroy_qp(id);
    need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
  }
}

static void print_services(const struct rdma_addrinfo* info) {
  for (; info != NULL; info = info->ai_next) {
    const struct sockaddr_ib* to = (const struct sockaddr_ib*)info->ai_dst_addr;
    char gid[INET6_ADDRSTRLEN];
    need(info->ai_family == AF_IB && info->ai_dst_len == sizeof *to,
         "an address that is not a service");
    inet_ntop(AF_INET6, &to->sib_addr, gid, sizeof gid);
    printf("service 0x%llx at %s pkey 0x%x\n", (unsigned long long)be64toh(to->sib_sid), gid,
           be16toh(to->sib_pkey));
  }
}

static void connect_to(struct rdma_cm_id* id, int is_sync) {
  struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
  make_qp(id);
  need(rdma_connect(id, &param) == 0, "rdma_connect");
  if (!is_sync) expect_event(RDMA_CM_EVENT_ESTABLISHED);
  puts("connected");
  need(rdma_disconnect(id) == 0, "rdma_disconnect");
  rdma_destroy_qp(id);
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
}

static void find_and_connect(const char* service, int is_sync) {
  const struct rdma_addrinfo hints = {.ai_flags = kRaiSa};
  struct rdma_cm_id* id = make_bound_id(0, is_sync);
  struct rdma_addrinfo* info = NULL;
  need(query_addrinfo(id, &info) == -1 && errno == ENOENT, "a query before a lookup");
  need(resolve_addrinfo(id, NULL, service, &hints) == 0, "rdma_resolve_addrinfo");
  if (!is_sync) expect_event(kAddrInfoResolved);
  need(resolve_addrinfo(id, NULL, service, &hints) == -1 && errno == EINVAL, "a second lookup");
  need(query_addrinfo(id, &info) == 0, "rdma_query_addrinfo");
  print_services(info);
  rdma_freeaddrinfo(info);
  need(rdma_resolve_route(id, kTimeoutMs) == 0, "rdma_resolve_route");
  if (!is_sync) expect_event(RDMA_CM_EVENT_ROUTE_RESOLVED);
  connect_to(id, is_sync);
}

static void look_up(const char* service) {
  const struct rdma_addrinfo hints = {.ai_flags = kRaiSa};
  struct rdma_addrinfo* info = NULL;
  const int error = rdma_getaddrinfo(NULL, service, &hints, &info);
  if (error == EAI_NONAME) {
    puts("not found");
    return;
  }
  need(error == 0, "rdma_getaddrinfo");
  print_services(info);
  rdma_freeaddrinfo(info);
}

static struct ibv_path_data path_data_of(const struct ibv_sa_path_rec* path) {
  struct ibv_path_data data = {.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY |
                                        IBV_PATH_FLAG_BIDIRECTIONAL};
  memcpy(&data.path.dgid, &path->dgid, sizeof path->dgid);
  memcpy(&data.path.sgid, &path->sgid, sizeof path->sgid);
  data.path.dlid = path->dlid;
  data.path.slid = path->slid;
  data.path.flowlabel_hoplimit = htobe32(be32toh(path->flow_label) << 8 | path->hop_limit);
  data.path.tclass = path->traffic_class;
  data.path.reversible_numpath = 0x81;
  data.path.pkey = path->pkey;
  data.path.qosclass_sl = htobe16(path->sl);
  data.path.mtu = 2 << 6 | path->mtu;  // 2: exactly this value
  data.path.rate = 2 << 6 | path->rate;
  data.path.packetlifetime = 2 << 6 | kOwnPacketLifeTime;
  return data;
}

static int set_path(struct rdma_cm_id* id, struct ibv_path_data* paths, size_t count) {
  return rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, count * sizeof *paths);
}

static void connect_by_path(const char* ip, uint16_t port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
  need(inet_pton(AF_INET, ip, &to.sin_addr) == 1, ip);
  struct rdma_cm_id *reference = NULL, *id = NULL;
  need(rdma_create_id(channel, &reference, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(rdma_resolve_addr(reference, NULL, (struct sockaddr*)&to, kTimeoutMs) == 0,
       "rdma_resolve_addr");
  expect_event(RDMA_CM_EVENT_ADDR_RESOLVED);
  need(rdma_resolve_route(reference, kTimeoutMs) == 0, "rdma_resolve_route");
  expect_event(RDMA_CM_EVENT_ROUTE_RESOLVED);
  // Only the second record is a path for both directions, so librdmacm must use that record.
  struct ibv_path_data paths[2] = {path_data_of(reference->route.path_rec),
                                   path_data_of(reference->route.path_rec)};
  paths[0].flags = IBV_PATH_FLAG_ALTERNATE;
  paths[0].path.dlid = 0;

  need(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(set_path(id, paths, 2) == -1 && errno == EINVAL, "a path before the address is resolved");
  need(rdma_resolve_addr(id, NULL, (struct sockaddr*)&to, kTimeoutMs) == 0, "rdma_resolve_addr");
  expect_event(RDMA_CM_EVENT_ADDR_RESOLVED);
  need(set_path(id, paths, 1) == -1 && errno == EINVAL, "no path for both directions");
  struct ibv_path_data wrong = paths[1];
  memset(&wrong.path.sgid, 0x42, sizeof wrong.path.sgid);
  need(set_path(id, &wrong, 1) == -1 && errno == EINVAL, "a path of another port");
  need(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, sizeof paths - 1) == -1 &&
           errno == EINVAL,
       "an incomplete record");
  need(set_path(id, paths, 2) == 0, "rdma_set_option");
  expect_event(RDMA_CM_EVENT_ROUTE_RESOLVED);
  need(id->route.num_paths == 1 && id->route.path_rec->dlid == reference->route.path_rec->dlid,
       "the path that was set");
  need(id->route.path_rec->packet_life_time == kOwnPacketLifeTime, "the packet life time");
  need(rdma_destroy_id(reference) == 0, "rdma_destroy_id");
  connect_to(id, 0);
}

int main(int argc, char** argv) {
  need(argc >= 3, "usage: see its source");
  channel = rdma_create_event_channel();
  need(channel != NULL, "rdma_create_event_channel");
  *(void**)&resolve_addrinfo = dlvsym(RTLD_DEFAULT, "rdma_resolve_addrinfo", "RDMACM_1.4");
  *(void**)&query_addrinfo = dlvsym(RTLD_DEFAULT, "rdma_query_addrinfo", "RDMACM_1.4");
  need(resolve_addrinfo != NULL && query_addrinfo != NULL, "functions of rdma-core 60");
  if (strcmp(argv[1], "serve") == 0 && argc == 4) {
    serve((uint16_t)atoi(argv[2]), atoi(argv[3]));
  } else if (strcmp(argv[1], "connect") == 0) {
    find_and_connect(argv[2], 0);
  } else if (strcmp(argv[1], "sync") == 0) {
    find_and_connect(argv[2], 1);
  } else if (strcmp(argv[1], "lookup") == 0) {
    look_up(argv[2]);
  } else if (strcmp(argv[1], "path") == 0 && argc == 4) {
    connect_by_path(argv[2], (uint16_t)atoi(argv[3]));
  } else {
    need(0, "an unknown command");
  }
  rdma_destroy_event_channel(channel);
  return 0;
}
