// Lets callgrind count the instructions of a SEND, and of polling a completion queue that is empty
// or has one completion.  Two queue pairs of this process are connected over loopback.  This is an
// ordinary libibverbs program.  Run it under `verbena run` and callgrind with
// --toggle-collect='*counted*', so that callgrind counts only the function counted().
#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "check.h"

namespace {

using verbena::bench::check;

constexpr const char* kUsage = "usage: instructions send|poll|full COUNT BYTES\n";
constexpr std::uint8_t kPort = 1;

struct Side {
  ibv_comp_channel* channel;
  ibv_cq* cq;
  ibv_qp* qp;
};

Side make_side(ibv_context* device, ibv_pd* pd) {
  Side side{};
  side.channel = ibv_create_comp_channel(device);
  check(side.channel != nullptr, "ibv_create_comp_channel");
  side.cq = ibv_create_cq(device, 16, nullptr, side.channel, 0);
  check(side.cq != nullptr, "ibv_create_cq");
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = side.cq;
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  init.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  side.qp = ibv_create_qp(pd, &init);
  check(side.qp != nullptr, "ibv_create_qp");
  return side;
}

void connect(ibv_qp* qp, std::uint32_t peer, const ibv_gid& gid) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = kPort;
  constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  check(ibv_modify_qp(qp, &attr, kInit) == 0, "to INIT");
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.dest_qp_num = peer;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = kPort;
  attr.ah_attr.grh.dgid = gid;
  attr.ah_attr.grh.hop_limit = 64;
  constexpr int kRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  check(ibv_modify_qp(qp, &attr, kRtr) == 0, "to RTR");
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 20;  // callgrind is slow
  attr.retry_cnt = attr.rnr_retry = 7;
  constexpr int kRts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  check(ibv_modify_qp(qp, &attr, kRts) == 0, "to RTS");
}

[[gnu::noinline]] int counted(ibv_qp* qp, ibv_send_wr* request) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, request, &bad);
}
[[gnu::noinline]] int counted(ibv_cq* cq, ibv_wc* done) { return ibv_poll_cq(cq, 1, done); }

void wait_for_completion(ibv_cq* cq) {
  ibv_wc done{};
  int count = 0;
  while (count == 0) count = ibv_poll_cq(cq, 1, &done);
  check(count == 1 && done.status == IBV_WC_SUCCESS, "a request");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc == 4 ? argv[1] : "";
  if (what != "send" && what != "poll" && what != "full") {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const int count = verbena::bench::parse_number(argv[2], "COUNT");
  const int bytes = verbena::bench::parse_number(argv[3], "BYTES");
  static std::array<std::byte, 4096> memory;
  check(static_cast<std::size_t>(bytes) <= memory.size(), "BYTES is at most 4096");

  ibv_device** const list = ibv_get_device_list(nullptr);
  check(list != nullptr && list[0] != nullptr, "ibv_get_device_list");
  ibv_context* const device = ibv_open_device(list[0]);
  check(device != nullptr, "ibv_open_device");
  ibv_pd* const pd = ibv_alloc_pd(device);
  check(pd != nullptr, "ibv_alloc_pd");
  ibv_mr* const mr = ibv_reg_mr(pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  check(mr != nullptr, "ibv_reg_mr");
  ibv_gid gid{};
  check(ibv_query_gid(device, kPort, 0, &gid) == 0, "ibv_query_gid");
  const Side a = make_side(device, pd), b = make_side(device, pd);
  connect(a.qp, b.qp->qp_num, gid);
  connect(b.qp, a.qp->qp_num, gid);

  ibv_sge segment{.addr = reinterpret_cast<std::uintptr_t>(memory.data()),
                  .length = static_cast<std::uint32_t>(bytes),
                  .lkey = mr->lkey};
  ibv_wc done{};
  for (int i = 0; i < count; ++i) {
    if (what == "poll") {
      check(counted(a.cq, &done) == 0, "ibv_poll_cq");
      continue;
    }
    ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = &segment, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    check(ibv_post_recv(b.qp, &receive, &bad) == 0, "ibv_post_recv");
    ibv_send_wr send{};
    send.sg_list = &segment;
    send.num_sge = 1;
    send.opcode = IBV_WR_SEND;
    if (what == "full") check(ibv_req_notify_cq(a.cq, 0) == 0, "ibv_req_notify_cq");
    if (what == "send") {
      check(counted(a.qp, &send) == 0, "ibv_post_send");
      wait_for_completion(b.cq);
      wait_for_completion(a.cq);
    } else {
      ibv_send_wr* not_sent = nullptr;
      check(ibv_post_send(a.qp, &send, &not_sent) == 0, "ibv_post_send");
      wait_for_completion(b.cq);
      // Waits for the event of the completion.  A poll would remove the completion.
      ibv_cq* ready = nullptr;
      void* context = nullptr;
      check(ibv_get_cq_event(a.channel, &ready, &context) == 0, "ibv_get_cq_event");
      ibv_ack_cq_events(ready, 1);
      check(counted(a.cq, &done) == 1 && done.status == IBV_WC_SUCCESS, "a completion that waits");
    }
  }
  return 0;
}
