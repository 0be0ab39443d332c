#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <netinet/ip.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "verbs_scene.h"

// Tests the drop-in libibverbs: queue pairs and their requests.

namespace {

TEST_F(Verbs, PostingStopsAtTheFirstRefusedRequest) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_RC);
  ibv_mr* null_mr = ibv_alloc_null_mr(pd_);
  ASSERT_NE(null_mr, nullptr);
  EXPECT_EQ(null_mr->lkey, 19u);
  EXPECT_EQ(ibv_dereg_mr(null_mr), 0);

  ibv_sge sge{.addr = 1, .length = 2, .lkey = 3};
  ibv_send_wr send[6]{};
  ibv_recv_wr receive[6]{};
  for (int i = 0; i < 6; ++i) {
    send[i].next = i < 5 ? &send[i + 1] : nullptr;
    send[i].sg_list = &sge;
    send[i].num_sge = 1;
    send[i].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    send[i].imm_data = htobe32(7);
    send[i].wr.rdma = {.remote_addr = 40, .rkey = 41};
    receive[i].next = i < 5 ? &receive[i + 1] : nullptr;
  }
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ(ibv_post_send(qp, send, &bad_send), ENOMEM);
  EXPECT_EQ(bad_send, &send[4]);  // the fake queue holds four requests
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_recv(qp, receive, &bad_receive), ENOMEM);
  EXPECT_EQ(bad_receive, &receive[4]);

  fake::Qp& fake_of_qp = fake_qp(qp);
  ASSERT_EQ(fake_of_qp.sent.size(), 4u);
  EXPECT_EQ(fake_of_qp.sent[0].imm, 7u);
  EXPECT_EQ(fake_of_qp.sent[0].remote_addr, 40u);
  EXPECT_EQ(fake_of_qp.sent[0].rkey, 41u);
  EXPECT_EQ(fake_of_qp.sent[0].sg_list->lkey, 3u);
  fake_of_qp.sent.clear();
  fake_of_qp.more.clear();
  send[1].next = nullptr;
  EXPECT_EQ(ibv_post_send(qp, send, &bad_send), 0);
  EXPECT_EQ(fake_of_qp.more, (std::vector<int>{1, 0}));
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

// The opcode of a request selects which members of the union `wr` are used.
TEST_F(Verbs, AtomicRequestsReachLibverbenaWithTheirOperands) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_RC);
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    ibv_send_wr send{};
    send.opcode = opcode;
    send.wr.atomic = {.remote_addr = 40, .compare_add = 42, .swap = 43, .rkey = 41};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qp, &send, &bad), 0);
    const vb_send_wr& sent = fake_qp(qp).sent.back();
    EXPECT_EQ(sent.opcode, static_cast<std::uint32_t>(opcode));
    EXPECT_EQ(sent.remote_addr, 40u);
    EXPECT_EQ(sent.rkey, 41u);
    EXPECT_EQ(sent.compare_add, 42u);
    EXPECT_EQ(sent.swap, 43u);
  }
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  ibv_device_attr attr{};
  EXPECT_EQ(ibv_query_device(context_, &attr), 0);
  EXPECT_EQ(attr.atomic_cap, IBV_ATOMIC_GLOB);
}

TEST_F(Verbs, WindowsOfType1GetANewKeyWithEachBinding) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_RC);
  char memory[16];
  ibv_mr* mr = ibv_reg_mr(pd_, memory, sizeof memory, IBV_ACCESS_MW_BIND);
  ibv_mw* mw = ibv_alloc_mw(pd_, IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  EXPECT_EQ(mw->context, context_);
  EXPECT_EQ(mw->pd, pd_);
  EXPECT_EQ(mw->type, IBV_MW_TYPE_1);
  EXPECT_EQ(mw->rkey, 0x123456ffu);
  ibv_mw_bind bind{.wr_id = 5,
                   .send_flags = IBV_SEND_SIGNALED,
                   .bind_info = {.mr = mr, .addr = 40, .length = 41, .mw_access_flags = 2}};
  ASSERT_EQ(ibv_bind_mw(qp, mw, &bind), 0);
  EXPECT_EQ(mw->rkey, 0x12345600u);
  const vb_send_wr sent = fake_qp(qp).sent.back();
  EXPECT_EQ(sent.wr_id, 5u);
  EXPECT_EQ(sent.opcode, static_cast<std::uint32_t>(IBV_WR_BIND_MW));
  EXPECT_EQ(sent.send_flags, static_cast<std::uint32_t>(IBV_SEND_SIGNALED));
  EXPECT_EQ(sent.rkey, mw->rkey);
  EXPECT_EQ(sent.bind_lkey, mr->lkey);
  EXPECT_EQ(sent.bind_addr, 40u);
  EXPECT_EQ(sent.bind_length, 41u);
  EXPECT_EQ(sent.bind_access, 2u);
  bind.bind_info = {};  // a binding of no bytes unbinds the window
  ASSERT_EQ(ibv_bind_mw(qp, mw, &bind), 0);
  EXPECT_EQ(mw->rkey, 0x12345601u);
  // The key of a window does not change if binding fails.
  fake::state().injected_errors["vb_post_send"] = ENOMEM;
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), ENOMEM);
  fake::state().injected_errors.clear();
  bind.bind_info.length = 1;
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), EINVAL);
  ibv_pd* other_pd = ibv_alloc_pd(context_);
  ibv_mr* other_mr = ibv_reg_mr(other_pd, memory, sizeof memory, IBV_ACCESS_MW_BIND);
  bind.bind_info.mr = other_mr;
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), EPERM);
  EXPECT_EQ(mw->rkey, 0x12345601u);
  EXPECT_EQ(ibv_dereg_mr(other_mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(other_pd), 0);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

class WindowsOfType2 : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    cq_ = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
    qp_ = create_qp(cq_, IBV_QPT_RC);
    mr_ = ibv_reg_mr(pd_, memory_, sizeof memory_, IBV_ACCESS_MW_BIND);
    mw_ = ibv_alloc_mw(pd_, IBV_MW_TYPE_2);
    ASSERT_NE(mw_, nullptr);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_dealloc_mw(mw_), 0);
    EXPECT_EQ(ibv_dereg_mr(mr_), 0);
    EXPECT_EQ(ibv_destroy_qp(qp_), 0);
    EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    Verbs::TearDown();
  }

  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_mw* mw_ = nullptr;
  char memory_[16]{};
};

TEST_F(WindowsOfType2, AreBoundAndInvalidatedByRequests) {
  ibv_send_wr* bad = nullptr;
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw = {.mw = mw_,
                .rkey = ibv_inc_rkey(mw_->rkey),
                .bind_info = {.mr = mr_, .addr = 40, .length = 41, .mw_access_flags = 4}};
  ASSERT_EQ(ibv_post_send(qp_, &wr, &bad), 0);
  EXPECT_EQ(fake_qp(qp_).sent.back().rkey, ibv_inc_rkey(mw_->rkey));
  EXPECT_EQ(fake_qp(qp_).sent.back().bind_lkey, mr_->lkey);
  EXPECT_EQ(fake_qp(qp_).sent.back().bind_addr, 40u);
  EXPECT_EQ(fake_qp(qp_).sent.back().bind_access, 4u);
  wr.bind_mw.mw = nullptr;
  ASSERT_EQ(ibv_post_send(qp_, &wr, &bad), 0);
  EXPECT_EQ(fake_qp(qp_).sent.back().send_flags, ~0u) << "libverbena refuses such flags";
  ibv_mw_bind bind{};
  EXPECT_EQ(ibv_bind_mw(qp_, mw_, &bind), EINVAL);  // this call is only for type 1
  for (const ibv_wr_opcode opcode : {IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV}) {
    ibv_send_wr invalidate{};
    invalidate.opcode = opcode;
    invalidate.invalidate_rkey = 0x77;
    fake_qp(qp_).sent.clear();
    ASSERT_EQ(ibv_post_send(qp_, &invalidate, &bad), 0);
    EXPECT_EQ(fake_qp(qp_).sent.back().opcode, static_cast<std::uint32_t>(opcode));
    EXPECT_EQ(fake_qp(qp_).sent.back().rkey, 0x77u);
  }
}

TEST_F(WindowsOfType2, TheDeviceShowsThatItBindsAndInvalidatesThem) {
  ibv_device_attr attr{};
  EXPECT_EQ(ibv_query_device(context_, &attr), 0);
  EXPECT_NE(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW, 0u);
  EXPECT_NE(attr.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS, 0u);
  EXPECT_NE(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, 0u);
  EXPECT_EQ(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A, 0u);
}

TEST_F(WindowsOfType2, BindingTakesOnlyTheLowByteOfTheKeyFromTheRequest) {
  ibv_send_wr* bad = nullptr;
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  for (const std::uint32_t upper_bits : {0u, 0x100u, 0xabcdef00u}) {
    wr.bind_mw = {.mw = mw_,
                  .rkey = upper_bits | 0x42,
                  .bind_info = {.mr = mr_, .addr = 0, .length = 16, .mw_access_flags = 0}};
    ASSERT_EQ(ibv_post_send(qp_, &wr, &bad), 0);
    EXPECT_EQ(fake_qp(qp_).sent.back().rkey, (mw_->rkey & 0xffffff00) | 0x42);
    EXPECT_NE(fake_qp(qp_).sent.back().send_flags, ~0u);
  }
}

TEST_F(Verbs, QpStateFollowsModifyAndQuery) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_UD);
  EXPECT_EQ(qp->state, IBV_QPS_RESET);
  ibv_qp_attr attr;
  std::memset(&attr, 0xaa, sizeof attr);  // ibv_modify_qp() must read only the members of the mask
  attr.qp_state = IBV_QPS_INIT;
  attr.qkey = 5;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY), 0);
  EXPECT_EQ(qp->state, IBV_QPS_INIT);
  EXPECT_EQ(fake_qp(qp).attr.qkey, 5u);
  EXPECT_EQ(fake_qp(qp).attr.timeout, 0);
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_RATE_LIMIT), EOPNOTSUPP);
  attr.alt_ah_attr.is_global = 1;
  attr.alt_ah_attr.grh.dgid.raw[15] = 7;
  attr.alt_ah_attr.grh.sgid_index = 3;
  attr.alt_timeout = 17;
  attr.alt_port_num = 1;
  attr.path_mig_state = IBV_MIG_REARM;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0);
  EXPECT_EQ(fake_qp(qp).attr.alt_ah.dgid[15], 7);
  EXPECT_EQ(fake_qp(qp).attr.alt_ah.sgid_index, 3);
  EXPECT_EQ(fake_qp(qp).attr.alt_timeout, 17);
  EXPECT_EQ(fake_qp(qp).attr.path_mig_state, unsigned{IBV_MIG_REARM});
  attr.en_sqd_async_notify = 1;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  EXPECT_EQ(fake_qp(qp).attr.en_sqd_async_notify, 1);
  fake_qp(qp).attr.sq_draining = 1;

  fake_qp(qp).attr.qp_state = IBV_QPS_ERR;
  ibv_qp_init_attr init{};
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(qp->state, IBV_QPS_ERR);
  EXPECT_EQ(attr.sq_draining, 1);
  EXPECT_EQ(init.send_cq, cq);
  EXPECT_EQ(init.cap.max_send_wr, 7u);

  fake::state().injected_errors["vb_qp_modify"] = EINVAL;
  attr.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(qp->state, IBV_QPS_ERR);
  fake::state().injected_errors.clear();
  EXPECT_EQ(ibv_qp_to_qp_ex(qp), nullptr);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, RepliesToADatagramUseItsDestinationAddressAsTheirSource) {
  ibv_grh grh{};
  iphdr header{};
  header.version = 4;
  header.ihl = 5;
  header.tos = 0x20;
  inet_pton(AF_INET, "10.0.0.9", &header.saddr);
  inet_pton(AF_INET, "10.0.0.1", &header.daddr);
  const auto update_checksum = [&] {
    header.check = 0;
    std::uint32_t sum = 0;
    std::uint16_t words[10];
    std::memcpy(words, &header, sizeof words);
    for (std::uint16_t word : words) sum += word;
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    header.check = static_cast<std::uint16_t>(~sum);
    std::memcpy(reinterpret_cast<char*>(&grh) + 20, &header, sizeof header);
  };
  update_checksum();
  ibv_wc wc{};
  wc.wc_flags = IBV_WC_GRH;
  ibv_ah* ah = ibv_create_ah_from_wc(pd_, &wc, &grh, 1);
  ASSERT_NE(ah, nullptr);
  EXPECT_EQ(fake::state().ah.sgid_index, 2);
  EXPECT_EQ(fake::state().ah.traffic_class, 0x20);
  EXPECT_EQ(fake::state().ah.dgid[10], 0xff);
  EXPECT_EQ(fake::state().ah.dgid[15], 9);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);

  inet_pton(AF_INET, "224.0.0.1", &header.daddr);  // a multicast address cannot be a reply's source
  update_checksum();
  ibv_ah_attr attr{};
  EXPECT_EQ(ibv_init_ah_from_wc(context_, 1, &wc, &grh, &attr), -1);
  EXPECT_EQ(errno, EINVAL);

  grh = {};
  grh.version_tclass_flow = htobe32(0x6ab12345);
  inet_pton(AF_INET6, "2001:db8::9", grh.sgid.raw);
  inet_pton(AF_INET6, "2001:db8::1", grh.dgid.raw);
  ASSERT_EQ(ibv_init_ah_from_wc(context_, 1, &wc, &grh, &attr), 0);
  EXPECT_EQ(attr.grh.sgid_index, 3);
  EXPECT_EQ(attr.grh.traffic_class, 0xab);
  EXPECT_EQ(attr.grh.flow_label, 0x12345u);
  EXPECT_EQ(attr.grh.dgid.raw[15], 9);

  EXPECT_EQ(ibv_create_ah(pd_, std::make_unique<ibv_ah_attr>().get()), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
