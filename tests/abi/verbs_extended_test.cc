#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <deque>
#include <thread>

#include "abi/wall_clock.h"
#include "verbs_scene.h"
#include "yield_processor.h"

// Tests the drop-in libibverbs: shared receive queues, and extended CQs, QPs and SRQs.

namespace {

TEST_F(Verbs, AnSrqIsCreatedChangedAndQueried) {
  ibv_srq_init_attr attr{.srq_context = this, .attr = {.max_wr = 9, .max_sge = 2, .srq_limit = 5}};
  ibv_srq* srq = ibv_create_srq(pd_, &attr);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(attr.attr.max_wr, 10u);  // the actual size
  EXPECT_EQ(srq->srq_context, this);
  EXPECT_EQ(srq->pd, pd_);
  ibv_srq_attr changed{.max_wr = 100, .max_sge = 7, .srq_limit = 4};
  ASSERT_EQ(ibv_modify_srq(srq, &changed, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(ibv_query_srq(srq, &changed), 0);
  EXPECT_EQ(changed.max_wr, 10u);
  EXPECT_EQ(changed.max_sge, 2u);
  EXPECT_EQ(changed.srq_limit, 4u);

  // Posting a list stops when the queue is full.
  ibv_recv_wr wrs[6]{};
  for (int i = 0; i < 6; ++i) {
    wrs[i].wr_id = static_cast<std::uint64_t>(i);
    wrs[i].next = i < 5 ? &wrs[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(srq, wrs, &bad), ENOMEM);
  EXPECT_EQ(bad, &wrs[4]);
  EXPECT_EQ(fake::state().srqs.begin()->second.receives[3].wr_id, 3u);

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

TEST_F(Verbs, DestroyingAnSrqWaitsForItsEvent) {
  ibv_srq_init_attr attr{.srq_context = nullptr,
                         .attr = {.max_wr = 9, .max_sge = 2, .srq_limit = 0}};
  ibv_srq* srq = ibv_create_srq(pd_, &attr);
  fake::Event event{};
  event.async = {.type = IBV_EVENT_SRQ_LIMIT_REACHED,
                 .cookie = fake::state().srqs.begin()->second.cookie,
                 .device = 0,
                 .port = 0};
  fake::state().contexts.at(fake::state().srqs.begin()->second.context)->push(event);
  ibv_async_event received{};
  ASSERT_EQ(ibv_get_async_event(context_, &received), 0);
  EXPECT_EQ(received.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(received.element.srq, srq);
  std::atomic<bool> acknowledged = false;
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_TRUE(acknowledged);
  });
  for (bool is_destroyed = false; !is_destroyed;) {
    const std::scoped_lock lock(fake::state().mutex);
    is_destroyed = fake::state().srqs.empty();
  }
  fake::yield_processor();
  acknowledged = true;
  ibv_ack_async_event(&received);
  destroyer.join();
}

TEST_F(Verbs, AnExtendedSrqMustBeOfTheBasicType) {
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

TEST_F(Verbs, AnExtendedCqReturnsEachValueByItsOwnFunction) {
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
  ibv_poll_cq_attr poll_attr{};
  EXPECT_EQ(ibv_start_poll(cq, &poll_attr), ENOENT);
  ibv_end_poll(cq);  // programs also call this after start_poll() has failed

  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const auto timestamp_ns = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000;
  vb_wc wc{};
  wc.wr_id = 77;
  wc.opcode = IBV_WC_RECV;
  wc.byte_len = 5;
  wc.vendor_err = 6;
  wc.qp_num = 7;
  wc.src_qp = 8;
  wc.wc_flags = IBV_WC_WITH_IMM;
  wc.imm = 0x01020304;
  wc.timestamp_ns = timestamp_ns;
  fake_cq(ibv_cq_ex_to_cq(cq)).completions.push_back(wc);
  wc.wr_id = 78;
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.wc_flags = IBV_WC_WITH_INV;
  wc.invalidated_rkey = 0x99;
  fake_cq(ibv_cq_ex_to_cq(cq)).completions.push_back(wc);

  ASSERT_EQ(ibv_start_poll(cq, &poll_attr), 0);
  EXPECT_EQ(cq->wr_id, 77u);
  EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_byte_len(cq), 5u);
  EXPECT_EQ(ibv_wc_read_vendor_err(cq), 6u);
  EXPECT_EQ(ibv_wc_read_qp_num(cq), 7u);
  EXPECT_EQ(ibv_wc_read_src_qp(cq), 8u);
  EXPECT_EQ(ibv_wc_read_imm_data(cq), htobe32(0x01020304));
  EXPECT_EQ(ibv_wc_read_completion_ts(cq), timestamp_ns);
  clock_gettime(CLOCK_REALTIME, &now);
  EXPECT_NEAR(static_cast<double>(ibv_wc_read_completion_wallclock_ns(cq)) / 1e9,
              static_cast<double>(now.tv_sec), 60);
  // Another thread's poll waits until this thread calls ibv_end_poll().
  std::atomic<bool> ended = false;
  std::thread other([&] {
    ibv_poll_cq_attr other_attr{};
    EXPECT_EQ(ibv_start_poll(cq, &other_attr), ENOENT);
    EXPECT_TRUE(ended);
  });
  fake::yield_processor();
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
  EXPECT_GE(static_cast<std::uint64_t>(values.raw_clock.tv_sec), timestamp_ns / 1'000'000'000);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

TEST_F(Verbs, WallClockTimesOfCompletionsNeverGoBackwards) {
  ibv_cq_init_attr_ex attr{};
  attr.cqe = 8;
  attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  ibv_cq_ex* cq = ibv_create_cq_ex(context_, &attr);
  ASSERT_NE(cq, nullptr);
  ibv_poll_cq_attr poll_attr{};
  const auto now_ns = [](clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
  };
  const std::uint64_t start = now_ns(CLOCK_MONOTONIC), wall_start = now_ns(CLOCK_REALTIME);
  std::uint64_t last_time = wall_start - 1'000'000'000, went_back = 0;
  for (std::uint64_t i = 0; i < 50'000; ++i) {
    vb_wc wc{};
    wc.timestamp_ns = start + i;
    std::deque<vb_wc>& completions = fake_cq(ibv_cq_ex_to_cq(cq)).completions;
    completions.push_back(wc);
    ++wc.timestamp_ns;
    completions.push_back(wc);
    ASSERT_EQ(ibv_start_poll(cq, &poll_attr), 0);
    for (const bool another : {true, false}) {
      const std::uint64_t time = ibv_wc_read_completion_wallclock_ns(cq);
      went_back += time < last_time ? 1 : 0;
      last_time = time;
      if (another) {
        ASSERT_EQ(ibv_next_poll(cq), 0);
      }
    }
    ibv_end_poll(cq);
    last_time -= 1;  // the next round begins with the last timestamp of this round
  }
  EXPECT_EQ(went_back, 0u);
  EXPECT_NEAR(static_cast<double>(last_time), static_cast<double>(wall_start), 1e9);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

TEST(WallClock, FollowsChangesOfTheWallClockAndIgnoresMeasuringErrors) {
  verbena::abi::WallClock clock;
  clock.measure(1'000, 500'010, 1'020);  // the offset is 499,000 +/- 11
  EXPECT_NEAR(static_cast<double>(clock.at(2'000)), 501'000, 11);
  const std::uint64_t first = clock.at(2'000);
  clock.measure(3'000, 502'000, 3'000);    // exact, but within the error of the first measurement
  clock.measure(4'000, 903'000, 404'000);  // the thread lost its processor between two readings
  EXPECT_EQ(clock.at(2'000), first);
  clock.measure(5'000, 9'005'000, 5'010);  // the wall clock was set forward
  EXPECT_NEAR(static_cast<double>(clock.at(5'000)), 9'005'000, 10);
  clock.measure(6'000, 106'000, 6'010);  // the wall clock was set back
  EXPECT_NEAR(static_cast<double>(clock.at(6'000)), 106'000, 10);
}

TEST_F(Verbs, AnExtendedQpPostsTheCollectedRequests) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp_init_attr_ex attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.qp_type = IBV_QPT_RC;
  attr.pd = pd_;
  attr.cap.max_send_sge = 2;
  attr.comp_mask = IBV_QP_INIT_ATTR_PD;
  ibv_qp* basic_qp = ibv_create_qp_ex(context_, &attr);
  ASSERT_NE(basic_qp, nullptr);
  EXPECT_EQ(ibv_qp_to_qp_ex(basic_qp), nullptr);
  EXPECT_EQ(ibv_destroy_qp(basic_qp), 0);

  attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attr.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE;
  ibv_qp* extended_qp = ibv_create_qp_ex(context_, &attr);
  ASSERT_NE(extended_qp, nullptr);
  EXPECT_EQ(attr.cap.max_inline_data, 256u);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(extended_qp);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(qp->wr_rdma_read, nullptr);  // send_ops_flags does not have it

  char text[4] = {'a', 'b', 'c', 'd'};
  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(qp, htobe32(5));
  ibv_wr_set_sge(qp, 9, 0x1000, 10);
  ibv_wr_set_inline_data(qp, text, sizeof text);  // replaces the scatter/gather element
  text[0] = 'x';                                  // has no effect: the data was copied
  qp->wr_id = 2;
  qp->wr_flags = 0;
  ibv_wr_rdma_write(qp, 33, 0x2000);
  const ibv_sge two_sges[] = {{.addr = 1, .length = 2, .lkey = 3},
                              {.addr = 4, .length = 5, .lkey = 6}};
  ibv_wr_set_sge_list(qp, 2, two_sges);
  EXPECT_TRUE(fake_qp(extended_qp).sent.empty());
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  const auto& sent = fake_qp(extended_qp).sent;
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].wr_id, 1u);
  EXPECT_EQ(sent[0].opcode, static_cast<std::uint32_t>(IBV_WR_SEND_WITH_IMM));
  EXPECT_EQ(sent[0].imm, 5u);
  EXPECT_EQ(sent[0].send_flags, static_cast<std::uint32_t>(IBV_SEND_SIGNALED | IBV_SEND_INLINE));
  EXPECT_EQ(fake_qp(extended_qp).inlined[0], "abcd");
  EXPECT_EQ(sent[1].wr_id, 2u);
  EXPECT_EQ(sent[1].remote_addr, 0x2000u);
  EXPECT_EQ(sent[1].rkey, 33u);
  EXPECT_EQ(sent[1].num_sge, 2u);

  // Nothing is posted if the batch is aborted, has too many elements, or does not fit.
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, 33, 0x2000);
  ibv_wr_abort(qp);
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, 33, 0x2000);
  const ibv_sge three_sges[3]{};
  ibv_wr_set_sge_list(qp, 3, three_sges);
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
  ibv_wr_start(qp);
  for (int i = 0; i < 3; ++i) ibv_wr_rdma_write(qp, 33, 0x2000);
  EXPECT_EQ(ibv_wr_complete(qp), ENOMEM);
  ibv_wr_start(qp);
  ibv_wr_set_sge(qp, 0, 0, 0);  // without a request
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
  EXPECT_EQ(fake_qp(extended_qp).sent.size(), 2u);
  EXPECT_EQ(ibv_destroy_qp(extended_qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

}  // namespace
