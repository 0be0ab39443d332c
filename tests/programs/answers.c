// Prints the results of calls of verbs and the RDMA CM that may differ between implementations.
// The test runs this program on Verbena and on Linux's soft-RoCE, and compares the outputs.
//
//   answers PEER-IPV4 PEER-IPV6
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#include "move_qp.h"

static union ibv_gid gid_of(const char* address) {
  union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
  if (inet_pton(AF_INET, address, gid.raw + 12) != 1) CHECK(inet_pton(AF_INET6, address, gid.raw));
  return gid;
}

static int is_ipv4(const union ibv_gid* gid) {
  const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
  return memcmp(gid->raw, prefix, sizeof prefix) == 0;
}

// Returns the index of a GID of this IP version that other hosts can reach: no loopback address and
// no link-local address.
static int source_index(struct ibv_context* device, int ipv4) {
  union ibv_gid gid;
  for (int index = 0; ibv_query_gid(device, 1, index, &gid) == 0; ++index) {
    if (gid.global.interface_id == 0 || gid.raw[0] == 0xfe || gid.raw[12] == 127) continue;
    if (gid.raw[15] == 1 && gid.raw[0] == 0 && !is_ipv4(&gid)) continue;  // ::1
    if (is_ipv4(&gid) == ipv4) return index;
  }
  CHECK(!"a source address of that family");
  return -1;
}

static void print_move_to_rtr(struct ibv_context* device, enum ibv_qp_type type, int source_ipv4,
                              union ibv_gid peer) {
  struct ibv_pd* pd = ibv_alloc_pd(device);
  struct ibv_cq* cq = ibv_create_cq(device, 4, NULL, NULL, 0);
  CHECK(pd != NULL && cq != NULL);
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = type};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  CHECK(qp != NULL);
  move_qp(qp, IBV_QPS_INIT, 0, peer);
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = 0x123,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 12,
      .ah_attr = {.is_global = 1,
                  .port_num = 1,
                  .grh = {.dgid = peer,
                          .sgid_index = (uint8_t)source_index(device, source_ipv4),
                          .hop_limit = 64}}};
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const int error = ibv_modify_qp(qp, &attr, mask);
  printf("%s to RTR, source IPv%d, destination IPv%d: %s\n", type == IBV_QPT_RC ? "RC" : "UC",
         source_ipv4 ? 4 : 6, is_ipv4(&peer) ? 4 : 6, strerror(error));
  CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void print_bind(struct rdma_event_channel* channel, const char* address, const char* name) {
  struct rdma_cm_id* id;
  CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
  union {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
  } to = {0};
  if (inet_pton(AF_INET, address, &to.ipv4.sin_addr) == 1) {
    to.ipv4.sin_family = AF_INET;
  } else {
    CHECK(inet_pton(AF_INET6, address, &to.ipv6.sin6_addr) == 1);
    to.ipv6.sin6_family = AF_INET6;
  }
  const int error = rdma_bind_addr(id, &to.any) == 0 ? 0 : errno;
  printf("bind to %s: %s, %s\n", name, strerror(error),
         id->verbs == NULL ? "no device" : "a device");
  CHECK(rdma_destroy_id(id) == 0);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  int count = 0;
  struct ibv_context** devices = rdma_get_devices(&count);
  CHECK(devices != NULL && count > 0);
  const union ibv_gid peers[] = {gid_of(argv[1]), gid_of(argv[2])};
  for (int peer = 0; peer < 2; ++peer) {
    for (int source_ipv4 = 0; source_ipv4 < 2; ++source_ipv4) {
      print_move_to_rtr(devices[0], IBV_QPT_RC, source_ipv4, peers[peer]);
      print_move_to_rtr(devices[0], IBV_QPT_UC, source_ipv4, peers[peer]);
    }
  }
  union ibv_gid own_gid;
  char text[INET6_ADDRSTRLEN];
  struct rdma_event_channel* channel = rdma_create_event_channel();
  CHECK(channel != NULL);
  print_bind(channel, "127.0.0.1", "127.0.0.1");
  print_bind(channel, "127.9.9.9", "127.9.9.9");
  print_bind(channel, "::1", "::1");
  print_bind(channel, "0.0.0.0", "0.0.0.0");
  CHECK(ibv_query_gid(devices[0], 1, source_index(devices[0], 1), &own_gid) == 0);
  CHECK(inet_ntop(AF_INET, own_gid.raw + 12, text, sizeof text) != NULL);
  print_bind(channel, text, "the host's IPv4 address");
  CHECK(ibv_query_gid(devices[0], 1, source_index(devices[0], 0), &own_gid) == 0);
  CHECK(inet_ntop(AF_INET6, own_gid.raw, text, sizeof text) != NULL);
  print_bind(channel, text, "the host's IPv6 address");
  rdma_destroy_event_channel(channel);
  rdma_free_devices(devices);
}
