#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <netinet/ip.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "fake_border.h"

// The drop-in libibverbs over an engine that only remembers what it was asked.

namespace {

class Verbs : public ::testing::Test {
 protected:
  void SetUp() override {
    ibv_device** list = ibv_get_device_list(nullptr);
    ASSERT_NE(list, nullptr);
    context_ = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    ASSERT_NE(context_, nullptr);
    pd_ = ibv_alloc_pd(context_);
    ASSERT_NE(pd_, nullptr);
  }
  void TearDown() override {
    fake::state().fail.clear();
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
    EXPECT_EQ(ibv_close_device(context_), 0);
  }

  ibv_qp* create_qp(ibv_cq* cq, ibv_qp_type type) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.qp_type = type;
    attr.cap.max_send_wr = 7;
    ibv_qp* qp = ibv_create_qp(pd_, &attr);
    if (qp != nullptr) {
      EXPECT_EQ(attr.cap.max_inline_data, 256u);  // given back
    }
    return qp;
  }
  fake::Qp& engine_qp(const ibv_qp* qp) {
    for (auto& [handle, found] : fake::state().qps) {
      if (static_cast<std::uint32_t>(handle) == qp->handle) return found;
    }
    throw std::runtime_error("no such QP");
  }
  fake::Cq& engine_cq(const ibv_cq* cq) {
    for (auto& [handle, found] : fake::state().cqs) {
      if (static_cast<std::uint32_t>(handle) == cq->handle) return found;
    }
    throw std::runtime_error("no such CQ");
  }
  void push_completion_event(const ibv_cq* cq) {
    const fake::Cq& found = engine_cq(cq);
    fake::Event event{};
    event.cookie = found.cookie;
    fake::state().channels.at(found.channel)->push(event);
  }

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
};

// Lets a thread that has something to do come to where it must wait.
void let_others_run() {
  for (int i = 0; i < 2000; ++i) std::this_thread::yield();
}

TEST_F(Verbs, TheDeviceIsListedWithItsGuidInNetworkOrder) {
  int devices = -1;
  ibv_device** list = ibv_get_device_list(&devices);
  ASSERT_EQ(devices, 1);
  EXPECT_EQ(list[1], nullptr);
  EXPECT_STREQ(ibv_get_device_name(list[0]), "verbena0");
  EXPECT_STREQ(list[0]->dev_name, "uverbs0");
  EXPECT_STREQ(list[0]->ibdev_path, "/sys/class/infiniband/verbena0");
  EXPECT_EQ(be64toh(ibv_get_device_guid(list[0])), 0x0011223344556677u);
  // What libmlx5 and libefa compare with their own operations.
  void* ops = nullptr;
  std::memcpy(&ops, reinterpret_cast<const char*>(list[0]) + 664, sizeof ops);
  EXPECT_NE(ops, nullptr);
  ibv_free_device_list(list);
}

TEST_F(Verbs, NoAgentMeansNoListAndAnErrno) {
  fake::state().fail["vb_device_query"] = ECONNREFUSED;
  int devices = -1;
  errno = 0;
  EXPECT_EQ(ibv_get_device_list(&devices), nullptr);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_EQ(devices, 0);
}

TEST_F(Verbs, AnEngineOfAnotherBuildIsRefused) {
  fake::state().build_id = "of yesterday";
  EXPECT_EQ(ibv_get_device_list(nullptr), nullptr);
  EXPECT_EQ(errno, ELIBBAD);
  fake::state().build_id.clear();
}

TEST_F(Verbs, OldProgramsPortStructureIsNotWrittenPastItsEnd) {
  struct {
    ibv_port_attr attr;
  } port;
  std::memset(&port, 0xaa, sizeof port);
  using Old = int (*)(ibv_context*, std::uint8_t, void*);
  const auto old = reinterpret_cast<Old>(dlsym(RTLD_DEFAULT, "ibv_query_port"));
  ASSERT_EQ(old(context_, 1, &port), 0);
  EXPECT_EQ(port.attr.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.attr.flags, IBV_QPF_GRH_REQUIRED);
  EXPECT_EQ(port.attr.port_cap_flags2, 0xaaaa);
}

TEST_F(Verbs, ThePortIsOneAndOnEthernet) {
  ibv_port_attr attr;
  std::memset(&attr, 0xaa, sizeof attr);
  ASSERT_EQ(ibv_query_port(context_, 1, &attr), 0);
  EXPECT_EQ(attr.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(attr.gid_tbl_len, 4);
  EXPECT_EQ(attr.lid, 0);
  EXPECT_EQ(attr.port_cap_flags2, 0);
  EXPECT_EQ(ibv_query_port(context_, 2, &attr), EINVAL);
}

TEST_F(Verbs, DeviceAttributesFitIntoInts) {
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(context_, nullptr, &attr), 0);
  EXPECT_EQ(attr.orig_attr.max_cqe, INT32_MAX);
  EXPECT_EQ(attr.orig_attr.max_qp, 1000);
  EXPECT_EQ(attr.phys_port_cnt_ex, 1u);
}

TEST_F(Verbs, GidTableHasEmptyPlacesAndAnEnd) {
  ibv_gid gid{};
  EXPECT_EQ(ibv_query_gid(context_, 1, 0, &gid), 0);
  EXPECT_EQ(gid.raw[0], 0xfe);
  EXPECT_EQ(ibv_query_gid(context_, 1, 1, &gid), 0);  // empty: all zero
  EXPECT_EQ(gid.global.subnet_prefix, 0u);
  EXPECT_EQ(ibv_query_gid(context_, 1, 4, &gid), -1);
  EXPECT_EQ(errno, EINVAL);

  ibv_gid_entry entry{};
  EXPECT_EQ(ibv_query_gid_ex(context_, 1, 1, &entry, 0), ENODATA);
  EXPECT_EQ(ibv_query_gid_ex(context_, 1, 2, &entry, 0), 0);
  EXPECT_EQ(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
  EXPECT_EQ(entry.ndev_ifindex, 2u);

  ibv_gid_entry entries[4];
  EXPECT_EQ(ibv_query_gid_table(context_, entries, 4, 0), 3);
  EXPECT_EQ(entries[1].gid_index, 2u);
  EXPECT_EQ(ibv_query_gid_table(context_, entries, 2, 0), -EINVAL);
}

TEST_F(Verbs, PkeysAreFoundInNetworkOrder) {
  __be16 pkey = 0;
  EXPECT_EQ(ibv_query_pkey(context_, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, htobe16(0xffff));
  EXPECT_EQ(ibv_get_pkey_index(context_, 1, htobe16(0xffff)), 0);
  EXPECT_EQ(ibv_get_pkey_index(context_, 1, htobe16(0x7fff)), -1);
}

TEST_F(Verbs, OptionalAccessFlagsAreIgnored) {
  char memory[64];
  unsigned int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
  ibv_mr* mr = ibv_reg_mr(pd_, memory, sizeof memory, access);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(fake::state().mr_access, IBV_ACCESS_LOCAL_WRITE);
  EXPECT_EQ(mr->lkey, 17u);
  EXPECT_EQ(mr->rkey, 18u);
  EXPECT_EQ(mr->addr, memory);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verbs, CompletionVectorMustExist) {
  EXPECT_EQ(ibv_create_cq(context_, 8, nullptr, nullptr, 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_create_cq(context_, 0, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Verbs, CompletionsComeOutInBatches) {
  ibv_cq* cq = ibv_create_cq(context_, 100, nullptr, nullptr, 0);
  EXPECT_EQ(cq->cqe, 101);  // what the engine gave
  for (std::uint64_t i = 0; i < 50; ++i) {
    vb_wc wc{};
    wc.wr_id = i;
    wc.opcode = IBV_WC_RECV;
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm = 0x01020304;
    engine_cq(cq).completions.push_back(wc);
  }
  ibv_wc wc[64];
  ASSERT_EQ(ibv_poll_cq(cq, 40, wc), 40);
  EXPECT_EQ(wc[39].wr_id, 39u);
  EXPECT_EQ(wc[39].imm_data, htobe32(0x01020304));
  EXPECT_EQ(ibv_poll_cq(cq, 64, wc), 10);
  EXPECT_EQ(ibv_poll_cq(cq, 64, wc), 0);
  EXPECT_EQ(ibv_resize_cq(cq, 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(cq, 4), 0);
  EXPECT_EQ(cq->cqe, 5);  // what the engine gave
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, DestroyingACqWaitsUntilItsEventsAreAcknowledged) {
  ibv_comp_channel* channel = ibv_create_comp_channel(context_);
  int mark = 0;
  ibv_cq* cq = ibv_create_cq(context_, 8, &mark, channel, 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
  for (int i = 0; i < 3; ++i) push_completion_event(cq);

  pollfd readable{.fd = channel->fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&readable, 1, 0), 1);
  EXPECT_EQ(readable.revents, POLLIN);
  ibv_cq* found = nullptr;
  void* cq_context = nullptr;
  for (int i = 0; i < 2; ++i) {  // the third one is never taken, so it needs no acknowledgement
    ASSERT_EQ(ibv_get_cq_event(channel, &found, &cq_context), 0);
    EXPECT_EQ(found, cq);
    EXPECT_EQ(cq_context, &mark);
  }
  ibv_ack_cq_events(cq, 1);

  std::atomic<bool> acknowledged = false;
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_TRUE(acknowledged);
  });
  for (bool gone = false; !gone;) {
    const std::scoped_lock lock(fake::state().mutex);
    gone = fake::state().cqs.empty();
  }
  let_others_run();
  acknowledged = true;
  ibv_ack_cq_events(cq, 1);
  destroyer.join();
  EXPECT_EQ(poll(&readable, 1, 0), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(Verbs, AnEventThatItsCqDidNotSurviveIsDropped) {
  ibv_comp_channel* channel = ibv_create_comp_channel(context_);
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, channel, 0);
  fake::Event event{};
  event.cookie = engine_cq(cq).cookie;
  fake::Queue& queue = *fake::state().channels.at(engine_cq(cq).channel);
  ASSERT_EQ(ibv_destroy_cq(cq), 0);
  queue.push(event);  // another thread was between the engine and the program
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
  void* cq_context = nullptr;
  EXPECT_EQ(ibv_get_cq_event(channel, &cq, &cq_context), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(Verbs, AsyncEventNamesItsQpAndHoldsItsDestruction) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_RC);
  fake::Event event{};
  event.async = {.type = IBV_EVENT_COMM_EST, .cookie = engine_qp(qp).init.cookie};
  fake::state().async.push(event);
  event.async = {.type = IBV_EVENT_PORT_ERR, .cookie = 0};
  fake::state().async.push(event);

  ibv_async_event got{};
  ASSERT_EQ(ibv_get_async_event(context_, &got), 0);
  EXPECT_EQ(got.event_type, IBV_EVENT_COMM_EST);
  EXPECT_EQ(got.element.qp, qp);
  ibv_async_event port{};
  ASSERT_EQ(ibv_get_async_event(context_, &port), 0);
  EXPECT_EQ(port.event_type, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(port.element.port_num, 1);
  ibv_ack_async_event(&port);

  std::atomic<bool> acknowledged = false;
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_TRUE(acknowledged);
  });
  for (bool gone = false; !gone;) {
    const std::scoped_lock lock(fake::state().mutex);
    gone = fake::state().qps.empty();
  }
  let_others_run();
  acknowledged = true;
  ibv_ack_async_event(&got);
  destroyer.join();
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, PostingStopsAtTheFirstRequestRefused) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_RC);
  ibv_mr* nothing = ibv_alloc_null_mr(pd_);
  ASSERT_NE(nothing, nullptr);
  EXPECT_EQ(nothing->lkey, 19u);
  EXPECT_EQ(ibv_dereg_mr(nothing), 0);

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
  EXPECT_EQ(bad_send, &send[4]);  // the fake's queue holds four
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_recv(qp, receive, &bad_receive), ENOMEM);
  EXPECT_EQ(bad_receive, &receive[4]);

  fake::Qp& engine = engine_qp(qp);
  ASSERT_EQ(engine.sent.size(), 4u);
  EXPECT_EQ(engine.sent[0].imm, 7u);
  EXPECT_EQ(engine.sent[0].remote_addr, 40u);
  EXPECT_EQ(engine.sent[0].rkey, 41u);
  EXPECT_EQ(engine.sent[0].sg_list->lkey, 3u);
  engine.sent.clear();
  engine.more.clear();
  send[1].next = nullptr;
  EXPECT_EQ(ibv_post_send(qp, send, &bad_send), 0);
  EXPECT_EQ(engine.more, (std::vector<int>{1, 0}));
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

// The members of the union that a request uses are those of its opcode.
TEST_F(Verbs, AtomicsBringTheirOperands) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_RC);
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    ibv_send_wr send{};
    send.opcode = opcode;
    send.wr.atomic = {.remote_addr = 40, .compare_add = 42, .swap = 43, .rkey = 41};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qp, &send, &bad), 0);
    const vb_send_wr& sent = engine_qp(qp).sent.back();
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
  const vb_send_wr sent = engine_qp(qp).sent.back();
  EXPECT_EQ(sent.wr_id, 5u);
  EXPECT_EQ(sent.opcode, static_cast<std::uint32_t>(IBV_WR_BIND_MW));
  EXPECT_EQ(sent.send_flags, static_cast<std::uint32_t>(IBV_SEND_SIGNALED));
  EXPECT_EQ(sent.rkey, mw->rkey);
  EXPECT_EQ(sent.bind_lkey, mr->lkey);
  EXPECT_EQ(sent.bind_addr, 40u);
  EXPECT_EQ(sent.bind_length, 41u);
  EXPECT_EQ(sent.bind_access, 2u);
  bind.bind_info = {};  // unbinds
  ASSERT_EQ(ibv_bind_mw(qp, mw, &bind), 0);
  EXPECT_EQ(mw->rkey, 0x12345601u);
  // What cannot be bound keeps its key.
  fake::state().fail["vb_post_send"] = ENOMEM;
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), ENOMEM);
  fake::state().fail.clear();
  bind.bind_info.length = 1;
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), EINVAL);
  ibv_pd* other = ibv_alloc_pd(context_);
  ibv_mr* foreign = ibv_reg_mr(other, memory, sizeof memory, IBV_ACCESS_MW_BIND);
  bind.bind_info.mr = foreign;
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), EPERM);
  EXPECT_EQ(mw->rkey, 0x12345601u);
  EXPECT_EQ(ibv_dereg_mr(foreign), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, WindowsOfType2AreBoundAndInvalidatedByRequests) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_RC);
  char memory[16];
  ibv_mr* mr = ibv_reg_mr(pd_, memory, sizeof memory, IBV_ACCESS_MW_BIND);
  ibv_mw* mw = ibv_alloc_mw(pd_, IBV_MW_TYPE_2);
  ASSERT_NE(mw, nullptr);
  ibv_send_wr* bad = nullptr;
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw = {.mw = mw,
                .rkey = ibv_inc_rkey(mw->rkey),
                .bind_info = {.mr = mr, .addr = 40, .length = 41, .mw_access_flags = 4}};
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  EXPECT_EQ(engine_qp(qp).sent.back().rkey, ibv_inc_rkey(mw->rkey));
  EXPECT_EQ(engine_qp(qp).sent.back().bind_lkey, mr->lkey);
  EXPECT_EQ(engine_qp(qp).sent.back().bind_addr, 40u);
  EXPECT_EQ(engine_qp(qp).sent.back().bind_access, 4u);
  wr.bind_mw.rkey += 0x100;  // that is another window's
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  EXPECT_EQ(engine_qp(qp).sent.back().send_flags, ~0u) << "the engine refuses it";
  ibv_mw_bind bind{};
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), EINVAL);  // for type 1 alone
  for (const ibv_wr_opcode opcode : {IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV}) {
    ibv_send_wr invalidate{};
    invalidate.opcode = opcode;
    invalidate.invalidate_rkey = 0x77;
    engine_qp(qp).sent.clear();
    ASSERT_EQ(ibv_post_send(qp, &invalidate, &bad), 0);
    EXPECT_EQ(engine_qp(qp).sent.back().opcode, static_cast<std::uint32_t>(opcode));
    EXPECT_EQ(engine_qp(qp).sent.back().rkey, 0x77u);
  }
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  ibv_device_attr attr{};
  EXPECT_EQ(ibv_query_device(context_, &attr), 0);
  EXPECT_NE(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW, 0u);
  EXPECT_NE(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, 0u);
  EXPECT_EQ(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A, 0u);
}

TEST_F(Verbs, QpStateFollowsModifyAndQuery) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_UD);
  EXPECT_EQ(qp->state, IBV_QPS_RESET);
  ibv_qp_attr attr;
  std::memset(&attr, 0xaa, sizeof attr);  // what the mask does not name is not read
  attr.qp_state = IBV_QPS_INIT;
  attr.qkey = 5;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY), 0);
  EXPECT_EQ(qp->state, IBV_QPS_INIT);
  EXPECT_EQ(engine_qp(qp).attr.qkey, 5u);
  EXPECT_EQ(engine_qp(qp).attr.timeout, 0);
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_RATE_LIMIT), EOPNOTSUPP);
  attr.alt_ah_attr.is_global = 1;
  attr.alt_ah_attr.grh.dgid.raw[15] = 7;
  attr.alt_ah_attr.grh.sgid_index = 3;
  attr.alt_timeout = 17;
  attr.alt_port_num = 1;
  attr.path_mig_state = IBV_MIG_REARM;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0);
  EXPECT_EQ(engine_qp(qp).attr.alt_ah.dgid[15], 7);
  EXPECT_EQ(engine_qp(qp).attr.alt_ah.sgid_index, 3);
  EXPECT_EQ(engine_qp(qp).attr.alt_timeout, 17);
  EXPECT_EQ(engine_qp(qp).attr.path_mig_state, unsigned{IBV_MIG_REARM});
  attr.en_sqd_async_notify = 1;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  EXPECT_EQ(engine_qp(qp).attr.en_sqd_async_notify, 1);
  engine_qp(qp).attr.sq_draining = 1;

  engine_qp(qp).attr.qp_state = IBV_QPS_ERR;
  ibv_qp_init_attr init{};
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(qp->state, IBV_QPS_ERR);
  EXPECT_EQ(attr.sq_draining, 1);
  EXPECT_EQ(init.send_cq, cq);
  EXPECT_EQ(init.cap.max_send_wr, 7u);

  fake::state().fail["vb_qp_modify"] = EINVAL;
  attr.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(qp->state, IBV_QPS_ERR);
  fake::state().fail.clear();
  EXPECT_EQ(ibv_qp_to_qp_ex(qp), nullptr);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, DatagramsAreAnsweredFromTheAddressTheyWereSentTo) {
  ibv_grh grh{};
  iphdr header{};
  header.version = 4;
  header.ihl = 5;
  header.tos = 0x20;
  inet_pton(AF_INET, "10.0.0.9", &header.saddr);
  inet_pton(AF_INET, "10.0.0.1", &header.daddr);
  const auto checksum = [&] {
    header.check = 0;
    std::uint32_t sum = 0;
    std::uint16_t words[10];
    std::memcpy(words, &header, sizeof words);
    for (std::uint16_t word : words) sum += word;
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    header.check = static_cast<std::uint16_t>(~sum);
    std::memcpy(reinterpret_cast<char*>(&grh) + 20, &header, sizeof header);
  };
  checksum();
  ibv_wc wc{};
  wc.wc_flags = IBV_WC_GRH;
  ibv_ah* ah = ibv_create_ah_from_wc(pd_, &wc, &grh, 1);
  ASSERT_NE(ah, nullptr);
  EXPECT_EQ(fake::state().ah.sgid_index, 2);
  EXPECT_EQ(fake::state().ah.traffic_class, 0x20);
  EXPECT_EQ(fake::state().ah.dgid[10], 0xff);
  EXPECT_EQ(fake::state().ah.dgid[15], 9);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);

  inet_pton(AF_INET, "224.0.0.1", &header.daddr);  // a group cannot answer
  checksum();
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

TEST_F(Verbs, AnSrqIsMadeChangedAndAsked) {
  ibv_srq_init_attr attr{.srq_context = this, .attr = {.max_wr = 9, .max_sge = 2, .srq_limit = 5}};
  ibv_srq* srq = ibv_create_srq(pd_, &attr);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(attr.attr.max_wr, 10u);  // what the engine gave
  EXPECT_EQ(srq->srq_context, this);
  EXPECT_EQ(srq->pd, pd_);
  ibv_srq_attr changed{.max_wr = 100, .max_sge = 7, .srq_limit = 4};
  ASSERT_EQ(ibv_modify_srq(srq, &changed, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(ibv_query_srq(srq, &changed), 0);
  EXPECT_EQ(changed.max_wr, 10u);
  EXPECT_EQ(changed.max_sge, 2u);
  EXPECT_EQ(changed.srq_limit, 4u);

  // A list stops where there is no room.
  ibv_recv_wr wrs[6]{};
  for (int i = 0; i < 6; ++i) {
    wrs[i].wr_id = static_cast<std::uint64_t>(i);
    wrs[i].next = i < 5 ? &wrs[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(srq, wrs, &bad), ENOMEM);
  EXPECT_EQ(bad, &wrs[4]);
  EXPECT_EQ(fake::state().srqs.begin()->second.received[3].wr_id, 3u);

  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp_init_attr qp_attr{};
  qp_attr.send_cq = qp_attr.recv_cq = cq;
  qp_attr.srq = srq;
  qp_attr.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(pd_, &qp_attr);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(qp->srq, srq);
  EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, AnSrqsEventHoldsItsDestruction) {
  ibv_srq_init_attr attr{.srq_context = nullptr,
                         .attr = {.max_wr = 9, .max_sge = 2, .srq_limit = 0}};
  ibv_srq* srq = ibv_create_srq(pd_, &attr);
  fake::Event event{};
  event.async = {.type = IBV_EVENT_SRQ_LIMIT_REACHED,
                 .cookie = fake::state().srqs.begin()->second.cookie};
  fake::state().async.push(event);
  ibv_async_event seen{};
  ASSERT_EQ(ibv_get_async_event(context_, &seen), 0);
  EXPECT_EQ(seen.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(seen.element.srq, srq);
  std::atomic<bool> acknowledged = false;
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_TRUE(acknowledged);
  });
  for (bool gone = false; !gone;) {
    const std::scoped_lock lock(fake::state().mutex);
    gone = fake::state().srqs.empty();
  }
  let_others_run();
  acknowledged = true;
  ibv_ack_async_event(&seen);
  destroyer.join();
}

TEST_F(Verbs, AnExtendedSrqIsTheSameUnlessItWantsMore) {
  ibv_srq_init_attr_ex attr{};
  attr.attr = {.max_wr = 9, .max_sge = 2, .srq_limit = 0};
  attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  attr.pd = pd_;
  attr.srq_type = IBV_SRQT_XRC;
  EXPECT_EQ(ibv_create_srq_ex(context_, &attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  attr.srq_type = IBV_SRQT_BASIC;
  ibv_srq* srq = ibv_create_srq_ex(context_, &attr);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(attr.attr.max_wr, 10u);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Verbs, AnExtendedCqIsReadValueByValue) {
  ibv_cq_init_attr_ex attr{};
  attr.cqe = 8;
  attr.cq_context = this;
  attr.wc_flags = std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                  IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  EXPECT_EQ(ibv_create_cq_ex(context_, &attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  attr.flags = 0;
  ibv_cq_ex* cq = ibv_create_cq_ex(context_, &attr);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(cq->cqe, 9);
  EXPECT_EQ(cq->cq_context, this);
  ibv_poll_cq_attr none{};
  EXPECT_EQ(ibv_start_poll(cq, &none), ENOENT);
  ibv_end_poll(cq);  // programs do

  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const auto stamp = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000;
  vb_wc wc{};
  wc.wr_id = 77;
  wc.opcode = IBV_WC_RECV;
  wc.byte_len = 5;
  wc.vendor_err = 6;
  wc.qp_num = 7;
  wc.src_qp = 8;
  wc.wc_flags = IBV_WC_WITH_IMM;
  wc.imm = 0x01020304;
  wc.timestamp_ns = stamp;
  engine_cq(ibv_cq_ex_to_cq(cq)).completions.push_back(wc);
  wc.wr_id = 78;
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.wc_flags = IBV_WC_WITH_INV;
  wc.invalidated_rkey = 0x99;
  engine_cq(ibv_cq_ex_to_cq(cq)).completions.push_back(wc);

  ASSERT_EQ(ibv_start_poll(cq, &none), 0);
  EXPECT_EQ(cq->wr_id, 77u);
  EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_byte_len(cq), 5u);
  EXPECT_EQ(ibv_wc_read_vendor_err(cq), 6u);
  EXPECT_EQ(ibv_wc_read_qp_num(cq), 7u);
  EXPECT_EQ(ibv_wc_read_src_qp(cq), 8u);
  EXPECT_EQ(ibv_wc_read_imm_data(cq), htobe32(0x01020304));
  EXPECT_EQ(ibv_wc_read_completion_ts(cq), stamp);
  clock_gettime(CLOCK_REALTIME, &now);
  EXPECT_NEAR(static_cast<double>(ibv_wc_read_completion_wallclock_ns(cq)) / 1e9,
              static_cast<double>(now.tv_sec), 60);
  // Nobody else polls between start and end.
  std::atomic<bool> ended = false;
  std::thread other([&] {
    ibv_poll_cq_attr its{};
    EXPECT_EQ(ibv_start_poll(cq, &its), ENOENT);
    EXPECT_TRUE(ended);
  });
  let_others_run();
  ASSERT_EQ(ibv_next_poll(cq), 0);
  EXPECT_EQ(cq->wr_id, 78u);
  EXPECT_EQ(cq->status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(ibv_wc_read_invalidated_rkey(cq), 0x99u);
  EXPECT_EQ(ibv_next_poll(cq), ENOENT);
  ended = true;
  ibv_end_poll(cq);
  other.join();

  ibv_values_ex values{};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(context_, &values), 0);
  EXPECT_GE(static_cast<std::uint64_t>(values.raw_clock.tv_sec), stamp / 1'000'000'000);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

TEST_F(Verbs, AnExtendedQpPostsWhatWasBuilt) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp_init_attr_ex attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.qp_type = IBV_QPT_RC;
  attr.pd = pd_;
  attr.cap.max_send_sge = 2;
  attr.comp_mask = IBV_QP_INIT_ATTR_PD;
  ibv_qp* plain = ibv_create_qp_ex(context_, &attr);
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(ibv_qp_to_qp_ex(plain), nullptr);
  EXPECT_EQ(ibv_destroy_qp(plain), 0);

  attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attr.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE;
  ibv_qp* made = ibv_create_qp_ex(context_, &attr);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(attr.cap.max_inline_data, 256u);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(made);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(qp->wr_rdma_read, nullptr);  // not asked for

  char text[4] = {'a', 'b', 'c', 'd'};
  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(qp, htobe32(5));
  ibv_wr_set_sge(qp, 9, 0x1000, 10);
  ibv_wr_set_inline_data(qp, text, sizeof text);  // instead
  text[0] = 'x';                                  // it was copied
  qp->wr_id = 2;
  qp->wr_flags = 0;
  ibv_wr_rdma_write(qp, 33, 0x2000);
  const ibv_sge two[] = {{.addr = 1, .length = 2, .lkey = 3}, {.addr = 4, .length = 5, .lkey = 6}};
  ibv_wr_set_sge_list(qp, 2, two);
  EXPECT_TRUE(engine_qp(made).sent.empty());
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  const auto& sent = engine_qp(made).sent;
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].wr_id, 1u);
  EXPECT_EQ(sent[0].opcode, static_cast<std::uint32_t>(IBV_WR_SEND_WITH_IMM));
  EXPECT_EQ(sent[0].imm, 5u);
  EXPECT_EQ(sent[0].send_flags, static_cast<std::uint32_t>(IBV_SEND_SIGNALED | IBV_SEND_INLINE));
  EXPECT_EQ(engine_qp(made).inlined[0], "abcd");
  EXPECT_EQ(sent[1].wr_id, 2u);
  EXPECT_EQ(sent[1].remote_addr, 0x2000u);
  EXPECT_EQ(sent[1].rkey, 33u);
  EXPECT_EQ(sent[1].num_sge, 2u);

  // Aborted, too many elements, no room: nothing is posted.
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, 33, 0x2000);
  ibv_wr_abort(qp);
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, 33, 0x2000);
  const ibv_sge three[3]{};
  ibv_wr_set_sge_list(qp, 3, three);
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
  ibv_wr_start(qp);
  for (int i = 0; i < 3; ++i) ibv_wr_rdma_write(qp, 33, 0x2000);
  EXPECT_EQ(ibv_wr_complete(qp), ENOMEM);
  ibv_wr_start(qp);
  ibv_wr_set_sge(qp, 0, 0, 0);  // of no request
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
  EXPECT_EQ(engine_qp(made).sent.size(), 2u);
  EXPECT_EQ(ibv_destroy_qp(made), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ParentDomainsStandForTheirDomain) {
  ibv_td_init_attr td_attr{};
  ibv_td* td = ibv_alloc_td(context_, &td_attr);
  ASSERT_NE(td, nullptr);
  ibv_parent_domain_init_attr attr{};
  attr.pd = pd_;
  attr.td = td;
  ibv_pd* domain = ibv_alloc_parent_domain(context_, &attr);
  ASSERT_NE(domain, nullptr);
  EXPECT_EQ(ibv_dealloc_td(td), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(pd_), EBUSY);
  ibv_cq_init_attr_ex cq_attr{};
  cq_attr.cqe = 8;
  cq_attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  cq_attr.parent_domain = pd_;  // none
  EXPECT_EQ(ibv_create_cq_ex(context_, &cq_attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  cq_attr.parent_domain = domain;
  ibv_cq_ex* cq = ibv_create_cq_ex(context_, &cq_attr);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  attr.pd = domain;
  EXPECT_EQ(ibv_alloc_parent_domain(context_, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
}

TEST_F(Verbs, ReregisteringChangesWhatItNames) {
  char memory[64];
  ibv_mr* mr = ibv_reg_mr(pd_, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  ibv_pd* other = ibv_alloc_pd(context_);
  ASSERT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, other,
                         memory + 8, 16, 0),
            0);
  EXPECT_EQ(mr->pd, other);
  EXPECT_EQ(mr->addr, memory + 8);
  EXPECT_EQ(mr->length, 16u);
  EXPECT_EQ(fake::state().rereg.length, 16u);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, nullptr, 16, 0),
            IBV_REREG_MR_ERR_INPUT);
  fake::state().fail["vb_mr_reregister"] = EFAULT;
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd_, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(mr->pd, other);  // as it was

  // Nothing looks at a PD that is not to change.
  fake::state().fail.clear();
  auto* const nonsense = reinterpret_cast<ibv_pd*>(memory + 1);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nonsense, nullptr, 0, 0), 0);
  EXPECT_EQ(fake::state().rereg.pd, 0u);
  EXPECT_EQ(mr->pd, other);

  ibv_sge sge{.addr = 1, .length = 2, .lkey = 3};
  EXPECT_EQ(
      ibv_advise_mr(other, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1),
      0);
  EXPECT_EQ(fake::state().prefetched.at(0).lkey, 3u);
  EXPECT_EQ(ibv_advise_mr(other, IBV_ADVISE_MR_ADVICE_PREFETCH, 8, &sge, 1), EINVAL);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

TEST_F(Verbs, WhatIsNotBuiltSaysSo) {
  ibv_cq_init_attr_ex cq_attr{};
  cq_attr.cqe = 8;
  cq_attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
  EXPECT_EQ(ibv_create_cq_ex(context_, &cq_attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_qp_init_attr_ex qp_attr{};
  qp_attr.qp_type = IBV_QPT_UD;
  qp_attr.pd = pd_;
  qp_attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  qp_attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
  EXPECT_EQ(ibv_create_qp_ex(context_, &qp_attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_import_device(3), nullptr);
  // 2006's versions answer cleanly, too.
  using Open = void* (*)(void*);
  const auto open_1_0 =
      reinterpret_cast<Open>(dlvsym(RTLD_DEFAULT, "ibv_open_device", "IBVERBS_1.0"));
  ASSERT_NE(open_1_0, nullptr);
  errno = 0;
  EXPECT_EQ(open_1_0(nullptr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Verbs, TheBoardIdIsReadable) {
  using Read = int (*)(const char*, const char*, char*, std::size_t);
  const auto read = reinterpret_cast<Read>(dlsym(RTLD_DEFAULT, "ibv_read_sysfs_file"));
  char text[64];
  EXPECT_EQ(read("/sys/class/infiniband/verbena0", "board_id", text, sizeof text), 8);
  EXPECT_STREQ(text, "verbena0");
  EXPECT_EQ(read("/sys/class/infiniband/verbena0", "nothing", text, sizeof text), -1);
  EXPECT_EQ(read("/sys/class/infiniband/other0", "board_id", text, sizeof text), -1);
}

// rping cancels its thread inside ibv_get_cq_event().
TEST_F(Verbs, AThreadThatWaitsForAnEventCanBeCancelled) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps the stack of a cancelled thread poisoned";
#endif
  ibv_comp_channel* channel = ibv_create_comp_channel(context_);
  std::thread for_completion([&] {
    ibv_cq* cq = nullptr;
    void* cq_context = nullptr;
    ibv_get_cq_event(channel, &cq, &cq_context);
  });
  std::thread for_async([&] {
    ibv_async_event event{};
    ibv_get_async_event(context_, &event);
  });
  let_others_run();
  pthread_cancel(for_completion.native_handle());
  pthread_cancel(for_async.native_handle());
  for_completion.join();
  for_async.join();
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

}  // namespace
