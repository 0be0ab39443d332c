#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <stdexcept>

#include "fake_c_api.h"

// Defines the fixture for tests of the drop-in libibverbs: a context and a protection domain.  The
// library calls the fake libverbena.
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
    fake::state().injected_errors.clear();
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
      EXPECT_EQ(attr.cap.max_inline_data, 256u);  // the actual limit
    }
    return qp;
  }
  fake::Qp& fake_qp(const ibv_qp* qp) {
    for (auto& [handle, found] : fake::state().qps) {
      if (static_cast<std::uint32_t>(handle) == qp->handle) return found;
    }
    throw std::runtime_error("no such QP");
  }
  fake::Cq& fake_cq(const ibv_cq* cq) {
    for (auto& [handle, found] : fake::state().cqs) {
      if (static_cast<std::uint32_t>(handle) == cq->handle) return found;
    }
    throw std::runtime_error("no such CQ");
  }
  void push_completion_event(const ibv_cq* cq) {
    const fake::Cq& found = fake_cq(cq);
    fake::Event event{};
    event.cookie = found.cookie;
    fake::state().channels.at(found.channel)->push(event);
  }

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
};
