// Prints all names and numbers that the libraries translate.  tables.txt has the output of this
// program with Debian's libraries (rdma-core 44.0-2) and the events of rdma-core 60.  With
// Verbena's libraries the output must be the same.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstdio>

int main() {
  // Also translates numbers that the enumerations do not have.
  for (int i = -1; i < 32; ++i) std::printf("wc %d %s\n", i, ibv_wc_status_str(ibv_wc_status(i)));
  for (int i = -1; i < 24; ++i) {
    std::printf("event %d %s\n", i, ibv_event_type_str(ibv_event_type(i)));
  }
  for (int i = -2; i < 10; ++i) std::printf("node %d %s\n", i, ibv_node_type_str(ibv_node_type(i)));
  for (int i = -1; i < 10; ++i) {
    std::printf("port %d %s\n", i, ibv_port_state_str(ibv_port_state(i)));
  }
  for (int i = -1; i < 24; ++i) std::printf("cm %d %s\n", i, rdma_event_str(rdma_cm_event_type(i)));
  for (int i = -1; i < 30; ++i) {
    std::printf("rate %d %d %d\n", i, ibv_rate_to_mult(ibv_rate(i)), ibv_rate_to_mbps(ibv_rate(i)));
  }
  for (int i = -1; i < 1000; ++i) {
    if (mult_to_ibv_rate(i) != 0) std::printf("mult %d %d\n", i, int(mult_to_ibv_rate(i)));
  }
  for (int i = -1; i < 2000000; ++i) {
    if (mbps_to_ibv_rate(i) != 0) std::printf("mbps %d %d\n", i, int(mbps_to_ibv_rate(i)));
  }
}
