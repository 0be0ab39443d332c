#include <endian.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

#include <cstdint>

#include "cm_scene.h"

// Tests the drop-in librdmacm: multicast.

namespace {

class CmGroups : public Cm {
 protected:
  void SetUp() override {
    Cm::SetUp();
    sockaddr_in to = group_;
    ASSERT_EQ(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_UDP), 0);
    ASSERT_EQ(rdma_resolve_addr(id_, nullptr, as_sockaddr(to), 100), 0);
    rdma_ack_cm_event(next_event());
  }
  void TearDown() override {
    fake::state().join_answer = RDMA_CM_EVENT_MULTICAST_JOIN;
    fake::state().join_address = fake::kEthernetGroup;
    EXPECT_EQ(rdma_destroy_id(id_), 0);
    Cm::TearDown();
  }
  rdma_cm_event* next_event() {
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel_, &event), 0);
    return event;
  }
  bool has_no_event() const {
    pollfd fd{.fd = channel_->fd, .events = POLLIN, .revents = 0};
    return poll(&fd, 1, 0) == 0;
  }
  int join(int flags, std::uint32_t mask, void* context = nullptr) {
    rdma_cm_join_mc_attr_ex attr{};
    attr.comp_mask = mask;
    attr.join_flags = static_cast<std::uint32_t>(flags);
    attr.addr = as_sockaddr(group_);
    return rdma_join_multicast_ex(id_, &attr, context);
  }
  static constexpr std::uint32_t kAddressAndFlags =
      RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;

  rdma_cm_id* id_ = nullptr;
  sockaddr_in group_ = address("239.77.1.5", 0);
};

TEST_F(CmGroups, TheEventOfAJoinHasTheAddressAndContext) {
  int mark = 0;
  ASSERT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), &mark), 0);
  rdma_cm_event* event = next_event();
  EXPECT_EQ(event->event, RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_EQ(event->id, id_);
  EXPECT_EQ(event->status, 0);
  const rdma_ud_param& param = event->param.ud;
  EXPECT_EQ(param.private_data, &mark);
  EXPECT_EQ(param.qp_num, 0xffffffu);
  EXPECT_EQ(param.qkey, RDMA_UDP_QKEY);
  EXPECT_EQ(param.ah_attr.grh.dgid.raw[12], 239);
  EXPECT_EQ(param.ah_attr.grh.dgid.raw[15], 5);
  EXPECT_EQ(param.ah_attr.is_global, 1);
  EXPECT_EQ(param.ah_attr.grh.hop_limit, 64);
  ASSERT_EQ(newest_fake_id().groups.size(), 1u);
  EXPECT_FALSE(newest_fake_id().groups.begin()->second);
  // Leaving does not wait until the event is acknowledged.
  EXPECT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), 0);
  EXPECT_TRUE(newest_fake_id().groups.empty());
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
}

TEST_F(CmGroups, AGroupOnInfinibandHasAnMlidAndParameters) {
  fake::state().join_address = {.dgid = {0xff, 0x12, 0x40, 0x01},
                                .flow_label = 0x12345,
                                .sgid_index = 1,
                                .hop_limit = 0,
                                .traffic_class = 7,
                                .is_global = 1,
                                .port_num = 2,
                                .sl = 4,
                                .src_path_bits = 0,
                                .dlid = 0xc003};
  ASSERT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), nullptr), 0);
  rdma_cm_event* event = next_event();
  ASSERT_EQ(event->event, RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_EQ(event->param.ud.qp_num, 0xffffffu);
  const ibv_ah_attr& to = event->param.ud.ah_attr;
  EXPECT_EQ(to.dlid, 0xc003);
  EXPECT_EQ(to.sl, 4);
  EXPECT_EQ(to.is_global, 1);
  EXPECT_EQ(to.port_num, 2);
  EXPECT_EQ(to.src_path_bits, 0);
  EXPECT_EQ(to.static_rate, IBV_RATE_40_GBPS);
  EXPECT_EQ(to.grh.dgid.raw[0], 0xff);
  EXPECT_EQ(to.grh.dgid.raw[12], 239);
  EXPECT_EQ(to.grh.flow_label, 0x12345u);
  EXPECT_EQ(to.grh.sgid_index, 1);
  EXPECT_EQ(to.grh.hop_limit, 0);
  EXPECT_EQ(to.grh.traffic_class, 7);
  rdma_ack_cm_event(event);
}

TEST_F(CmGroups, AnMgidAndAWildcardAddressArePassedOnUnchanged) {
  sockaddr_ib mgid{};
  mgid.sib_family = AF_IB;
  mgid.sib_addr.sib_addr32[0] = htobe32(0xff12401b);
  mgid.sib_addr.sib_addr32[3] = htobe32(7);
  sockaddr_in wildcard{};
  wildcard.sin_family = AF_INET;
  sockaddr_in6 wildcard6{};
  wildcard6.sin6_family = AF_INET6;
  const auto expect_unchanged = [&](auto& group) {
    auto* const address = reinterpret_cast<sockaddr*>(&group);
    ASSERT_EQ(rdma_join_multicast(id_, address, nullptr), 0);
    rdma_ack_cm_event(next_event());
    EXPECT_EQ(std::memcmp(&newest_fake_id().joined_address, &group, sizeof group), 0);
    EXPECT_EQ(rdma_leave_multicast(id_, address), 0);
    EXPECT_TRUE(newest_fake_id().groups.empty());
  };
  expect_unchanged(mgid);
  expect_unchanged(wildcard);
  expect_unchanged(wildcard6);
}

// When the error is reported, the agent has already left the group.  As with librdmacm, the program
// leaves it as well, and may join it again.
TEST_F(CmGroups, AGroupWhoseMembershipWasLostIsLeftWithSuccessOnce) {
  int mark = 0;
  ASSERT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), &mark), 0);
  rdma_ack_cm_event(next_event());
  vb_cm_event lost = make_event(RDMA_CM_EVENT_MULTICAST_ERROR, -ENETRESET);
  lost.group_cookie = newest_fake_id().groups.begin()->first;
  report_event(newest_fake_id(), lost);
  rdma_cm_event* event = next_event();
  EXPECT_EQ(event->event, RDMA_CM_EVENT_MULTICAST_ERROR);
  EXPECT_EQ(event->status, -ENETRESET);
  EXPECT_EQ(event->param.ud.private_data, &mark);
  rdma_ack_cm_event(event);
  newest_fake_id().groups.clear();
  EXPECT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), 0);
  EXPECT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  EXPECT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), &mark), 0);
  rdma_ack_cm_event(next_event());
}

TEST_F(CmGroups, AfterALostMembershipTheNewJoinIsLeftFirst) {
  ASSERT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), nullptr), 0);
  rdma_ack_cm_event(next_event());
  vb_cm_event lost = make_event(RDMA_CM_EVENT_MULTICAST_ERROR, -ENETRESET);
  lost.group_cookie = newest_fake_id().groups.begin()->first;
  newest_fake_id().groups.clear();
  report_event(newest_fake_id(), lost);
  rdma_ack_cm_event(next_event());
  ASSERT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), nullptr), 0);
  rdma_ack_cm_event(next_event());
  EXPECT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), 0);
  EXPECT_TRUE(newest_fake_id().groups.empty());
}

TEST_F(CmGroups, TheExtendedJoinMayBeSendOnly) {
  ASSERT_EQ(join(RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, kAddressAndFlags), 0);
  EXPECT_TRUE(newest_fake_id().groups.begin()->second);
  rdma_ack_cm_event(next_event());
  ASSERT_EQ(join(RDMA_MC_JOIN_FLAG_FULLMEMBER, kAddressAndFlags), 0);
  rdma_ack_cm_event(next_event());
  EXPECT_EQ(newest_fake_id().groups.size(), 2u);
  const auto fails_with = [&](int flags, std::uint32_t mask, int error) {
    return join(flags, mask) == -1 && errno == error;
  };
  EXPECT_TRUE(fails_with(0, kAddressAndFlags | RDMA_CM_JOIN_MC_ATTR_RESERVED, EOPNOTSUPP));
  EXPECT_TRUE(fails_with(0, RDMA_CM_JOIN_MC_ATTR_ADDRESS, EINVAL));
  EXPECT_TRUE(fails_with(RDMA_MC_JOIN_FLAG_RESERVED, kAddressAndFlags, EINVAL));
  EXPECT_EQ(rdma_join_multicast_ex(id_, nullptr, nullptr), -1);
  EXPECT_EQ(rdma_join_multicast(id_, nullptr, nullptr), -1);
  EXPECT_EQ(newest_fake_id().groups.size(), 2u);
}

TEST_F(CmGroups, ARefusedJoinCannotBeLeftAndAFailedJoinCan) {
  fake::state().injected_errors["vb_cm_join"] = ENODEV;
  EXPECT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), nullptr), -1);
  EXPECT_EQ(errno, ENODEV);
  EXPECT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), -1);
  fake::state().injected_errors.clear();
  fake::state().join_answer = RDMA_CM_EVENT_MULTICAST_ERROR;
  int mark = 0;
  ASSERT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), &mark), 0);
  rdma_cm_event* event = next_event();
  EXPECT_EQ(event->event, RDMA_CM_EVENT_MULTICAST_ERROR);
  EXPECT_EQ(event->status, -ENOMEM);
  EXPECT_EQ(event->param.ud.private_data, &mark);
  rdma_ack_cm_event(event);
  EXPECT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), 0);
  EXPECT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), -1);
}

// When a program leaves a group, libverbena drops the group's events that are still in its queue.
// The drop-in library drops such an event if it has already read the event from the queue.
TEST_F(CmGroups, EventsOfAGroupAreDroppedAfterLeavingIt) {
  ASSERT_EQ(rdma_join_multicast(id_, as_sockaddr(group_), nullptr), 0);
  ASSERT_EQ(rdma_leave_multicast(id_, as_sockaddr(group_)), 0);
  ASSERT_FALSE(has_no_event());
  ASSERT_EQ(fcntl(channel_->fd, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(channel_, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

}  // namespace
