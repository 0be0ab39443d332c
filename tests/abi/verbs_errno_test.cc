#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <functional>
#include <string>

#include "verbs_scene.h"

// Checks that verbs that return an error number also set errno, as in rdma-core.

namespace {

class Errors : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    channel_ = ibv_create_comp_channel(context_);
    cq_ = ibv_create_cq(context_, 8, nullptr, channel_, 0);
    qp_ = create_qp(cq_, IBV_QPT_RC);
    mr_ = ibv_reg_mr(pd_, memory_, sizeof memory_, IBV_ACCESS_MW_BIND);
    mw_ = ibv_alloc_mw(pd_, IBV_MW_TYPE_1);
    ibv_srq_init_attr attr{.srq_context = nullptr,
                           .attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0}};
    srq_ = ibv_create_srq(pd_, &attr);
  }
  void TearDown() override {
    fake::state().injected_errors.clear();
    EXPECT_EQ(ibv_destroy_srq(srq_), 0);
    EXPECT_EQ(ibv_dealloc_mw(mw_), 0);
    EXPECT_EQ(ibv_dereg_mr(mr_), 0);
    EXPECT_EQ(ibv_destroy_qp(qp_), 0);
    EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel_), 0);
    Verbs::TearDown();
  }

  // Expects that the call returns `error` and sets errno to it.
  static void expect_error_and_errno(const std::string& name, int error,
                                     const std::function<int()>& call) {
    errno = 0;
    EXPECT_EQ(call(), error) << name;
    EXPECT_EQ(errno, error) << name;
  }
  // Makes the function `name` of libverbena fail with an unusual errno, and expects that the call
  // returns this errno.
  static void expect_error_and_errno(const std::string& name, const std::function<int()>& call) {
    constexpr int kUnusual = EUNATCH;
    fake::state().injected_errors[name] = kUnusual;
    expect_error_and_errno(name, kUnusual, call);
    fake::state().injected_errors.clear();
  }

  char memory_[16]{};
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_mw* mw_ = nullptr;
  ibv_srq* srq_ = nullptr;
};

TEST_F(Errors, CallsForDevicesAndMemoryAlsoSetErrno) {
  ibv_device_attr device{};
  ibv_device_attr_ex device_ex{};
  ibv_port_attr port{};
  ibv_gid_entry gid{};
  expect_error_and_errno("vb_device_query", [&] { return ibv_query_device(context_, &device); });
  expect_error_and_errno("vb_device_query",
                         [&] { return ibv_query_device_ex(context_, nullptr, &device_ex); });
  expect_error_and_errno("vb_port_query", [&] { return ibv_query_port(context_, 1, &port); });
  expect_error_and_errno("another port", EINVAL,
                         [&] { return ibv_query_port(context_, 2, &port); });
  expect_error_and_errno("vb_gid_query", [&] { return ibv_query_gid_ex(context_, 1, 0, &gid, 0); });
  expect_error_and_errno(
      "vb_gid_query", [&] { return static_cast<int>(-ibv_query_gid_table(context_, &gid, 1, 0)); });
  ibv_sge sge{};
  expect_error_and_errno("vb_mr_prefetch", [&] {
    return ibv_advise_mr(pd_, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1);
  });
  expect_error_and_errno("vb_mr_deregister", [&] { return ibv_dereg_mr(mr_); });
  expect_error_and_errno("vb_mw_destroy", [&] { return ibv_dealloc_mw(mw_); });
  expect_error_and_errno("vb_pd_destroy", [&] { return ibv_dealloc_pd(pd_); });
}

TEST_F(Errors, CallsForQueuesAlsoSetErrno) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  ibv_srq_attr srq_attr{};
  const ibv_gid gid{};
  expect_error_and_errno("vb_qp_modify", [&] { return ibv_modify_qp(qp_, &attr, IBV_QP_STATE); });
  expect_error_and_errno("a rate limit", EOPNOTSUPP,
                         [&] { return ibv_modify_qp(qp_, &attr, IBV_QP_RATE_LIMIT); });
  expect_error_and_errno("vb_qp_query", [&] { return ibv_query_qp(qp_, &attr, 0, &init); });
  expect_error_and_errno("vb_qp_destroy", [&] { return ibv_destroy_qp(qp_); });
  expect_error_and_errno("vb_qp_attach", [&] { return ibv_attach_mcast(qp_, &gid, 0); });
  expect_error_and_errno("vb_qp_attach", [&] { return ibv_detach_mcast(qp_, &gid, 0); });
  expect_error_and_errno("vb_cq_resize", [&] { return ibv_resize_cq(cq_, 16); });
  expect_error_and_errno("vb_cq_arm", [&] { return ibv_req_notify_cq(cq_, 0); });
  expect_error_and_errno("vb_cq_destroy", [&] { return ibv_destroy_cq(cq_); });
  expect_error_and_errno("a channel in use", EBUSY,
                         [&] { return ibv_destroy_comp_channel(channel_); });
  expect_error_and_errno("vb_srq_modify",
                         [&] { return ibv_modify_srq(srq_, &srq_attr, IBV_SRQ_LIMIT); });
  expect_error_and_errno("vb_srq_query", [&] { return ibv_query_srq(srq_, &srq_attr); });
  expect_error_and_errno("vb_srq_destroy", [&] { return ibv_destroy_srq(srq_); });
}

// Makes a call while the public handle of an object has a wrong value.
template <class Object>
void expect_unknown(const char* name, Object& object, const std::function<int()>& call) {
  const std::uint32_t handle = object.handle;
  object.handle = ~handle;
  errno = 0;
  call();
  EXPECT_EQ(errno, ENOENT) << name;
  object.handle = handle;
}

TEST_F(Errors, CommandsDoNotFindAnObjectWhoseHandleTheProgramHasOverwritten) {
  const auto is_null = [](const void* object) { return object == nullptr ? 0 : 1; };
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq_;
  init.qp_type = IBV_QPT_RC;
  ibv_srq_init_attr srq_init{};
  ibv_ah_attr ah_attr{};
  ah_attr.is_global = ah_attr.port_num = 1;
  ibv_ah* const ah = ibv_create_ah(pd_, &ah_attr);
  ASSERT_NE(ah, nullptr);
  ibv_qp_attr attr{};
  ibv_srq_attr srq_attr{};
  const ibv_gid gid{};
  ibv_sge sge{};
  ibv_pd& pd = *pd_;
  expect_unknown("dealloc_pd", pd, [&] { return ibv_dealloc_pd(pd_); });
  expect_unknown("reg_mr", pd, [&] { return is_null(ibv_reg_mr(pd_, memory_, 1, 0)); });
  expect_unknown("alloc_null_mr", pd, [&] { return is_null(ibv_alloc_null_mr(pd_)); });
  expect_unknown("advise_mr", pd,
                 [&] { return ibv_advise_mr(pd_, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1); });
  expect_unknown("alloc_mw", pd, [&] { return is_null(ibv_alloc_mw(pd_, IBV_MW_TYPE_1)); });
  expect_unknown("create_ah", pd, [&] { return is_null(ibv_create_ah(pd_, &ah_attr)); });
  expect_unknown("create_srq", pd, [&] { return is_null(ibv_create_srq(pd_, &srq_init)); });
  expect_unknown("create_qp", pd, [&] { return is_null(ibv_create_qp(pd_, &init)); });
  expect_unknown("create_qp, CQ", *cq_, [&] { return is_null(ibv_create_qp(pd_, &init)); });
  init.srq = srq_;
  expect_unknown("create_qp, SRQ", *srq_, [&] { return is_null(ibv_create_qp(pd_, &init)); });
  expect_unknown("rereg_mr, domain", pd,
                 [&] { return ibv_rereg_mr(mr_, IBV_REREG_MR_CHANGE_PD, pd_, nullptr, 0, 0); });
  expect_unknown("rereg_mr", *mr_, [&] {
    return ibv_rereg_mr(mr_, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0);
  });
  expect_unknown("dereg_mr", *mr_, [&] { return ibv_dereg_mr(mr_); });
  expect_unknown("dealloc_mw", *mw_, [&] { return ibv_dealloc_mw(mw_); });
  expect_unknown("destroy_ah", *ah, [&] { return ibv_destroy_ah(ah); });
  expect_unknown("resize_cq", *cq_, [&] { return ibv_resize_cq(cq_, 16); });
  expect_unknown("destroy_cq", *cq_, [&] { return ibv_destroy_cq(cq_); });
  expect_unknown("modify_qp", *qp_, [&] { return ibv_modify_qp(qp_, &attr, IBV_QP_STATE); });
  expect_unknown("query_qp", *qp_, [&] { return ibv_query_qp(qp_, &attr, 0, &init); });
  expect_unknown("attach", *qp_, [&] { return ibv_attach_mcast(qp_, &gid, 0); });
  expect_unknown("detach", *qp_, [&] { return ibv_detach_mcast(qp_, &gid, 0); });
  expect_unknown("destroy_qp", *qp_, [&] { return ibv_destroy_qp(qp_); });
  expect_unknown("modify_srq", *srq_,
                 [&] { return ibv_modify_srq(srq_, &srq_attr, IBV_SRQ_LIMIT); });
  expect_unknown("query_srq", *srq_, [&] { return ibv_query_srq(srq_, &srq_attr); });
  expect_unknown("destroy_srq", *srq_, [&] { return ibv_destroy_srq(srq_); });
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(Errors, PostingAlsoSetsErrno) {
  ibv_send_wr send{}, *bad_send = nullptr;
  ibv_recv_wr receive{}, *bad_receive = nullptr;
  ibv_mw_bind bind{};
  expect_error_and_errno("vb_post_send", [&] { return ibv_post_send(qp_, &send, &bad_send); });
  expect_error_and_errno("vb_post_send", [&] { return ibv_bind_mw(qp_, mw_, &bind); });
  expect_error_and_errno("vb_post_recv",
                         [&] { return ibv_post_recv(qp_, &receive, &bad_receive); });
  expect_error_and_errno("vb_post_srq_recv",
                         [&] { return ibv_post_srq_recv(srq_, &receive, &bad_receive); });
}

TEST_F(Errors, AnEmptyExtendedCqDoesNotSetErrno) {
  ibv_cq_init_attr_ex init{};
  init.cqe = 8;
  ibv_cq_ex* cq = ibv_create_cq_ex(context_, &init);
  ASSERT_NE(cq, nullptr);
  ibv_poll_cq_attr poll{};
  errno = 0;
  EXPECT_EQ(ibv_start_poll(cq, &poll), ENOENT);
  EXPECT_EQ(errno, 0);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

}  // namespace
