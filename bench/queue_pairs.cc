// Creates idle queue pairs to measure their memory.  Each queue pair is of type RC, connected with
// itself, and in state RTS.
#include <infiniband/verbs.h>
#include <unistd.h>

#include "check.h"

namespace {

using verbena::bench::check;
using verbena::bench::parse_number;
using verbena::bench::wait_for_line;

constexpr const char* kUsage =
    "usage: queue_pairs STEP...\n"
    "Creates queue pairs until there are STEP, prints their number, and goes on to the next STEP\n"
    "when it reads a line.\n";

constexpr int kCqEntries = 4096;

class Device {
 public:
  Device() {
    ibv_device** list = ibv_get_device_list(nullptr);
    check(list != nullptr && list[0] != nullptr, "ibv_get_device_list");
    context_ = ibv_open_device(list[0]);
    check(context_ != nullptr, "ibv_open_device");
    ibv_free_device_list(list);
    check(ibv_query_gid(context_, 1, 0, &gid_) == 0, "ibv_query_gid");
    pd_ = ibv_alloc_pd(context_);
    check(pd_ != nullptr, "ibv_alloc_pd");
    cq_ = ibv_create_cq(context_, kCqEntries, nullptr, nullptr, 0);
    check(cq_ != nullptr, "ibv_create_cq");
  }

  void create_queue_pair() const {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    ibv_qp* qp = ibv_create_qp(pd_, &init);
    check(qp != nullptr, "ibv_create_qp");

    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    modify(qp, attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = qp->qp_num;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = gid_;
    attr.ah_attr.grh.hop_limit = 64;
    modify(qp, attr,
           IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    modify(qp, attr,
           IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
               IBV_QP_MAX_QP_RD_ATOMIC);
  }

 private:
  static void modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) {
    errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
    check(errno == 0, "ibv_modify_qp");
  }

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  union ibv_gid gid_ {};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const Device device;
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    for (const int step = parse_number(argv[i], "STEP"); count < step; ++count)
      device.create_queue_pair();
    std::printf("holding %d program %d\n", count, getpid());
    std::fflush(stdout);
    wait_for_line();
  }
}
