#include <cerrno>

#include "process/fixture_test.h"

namespace verbena::process {
namespace {

using ::testing::SizeIs;

const Gid kGroup = wire::ipv4_gid(0xef4d0105);

class Groups : public ProcessTest {
 protected:
  Groups() { init_.type = hca::QpType::kUd; }

  void attach(hca::QpHandle qp, std::uint32_t interface = 0) {
    keep_pending(process_.attach_multicast(
        qp, kGroup, interface,
        [this](const Result<ipc::Done>& done) { results_.push_back(done.has_value()); }));
  }
  bool is_attached(hca::QpHandle qp) {
    const bool attached = process_.engine().detach_multicast(qp, kGroup).has_value();
    if (attached) process_.engine().attach_multicast(qp, kGroup).value();
    return attached;
  }
  std::vector<bool> results_;
};

TEST_F(Groups, AttachSendsAJoinAndTheLastDetachSendsALeave) {
  const auto first_qp = create_qp();
  const auto second_qp = create_qp();
  attach(first_qp);
  attach(second_qp);
  for (int i = 0; i < 2; ++i) {
    const auto [number, join] = expect_message<ipc::JoinGroup>();
    EXPECT_EQ(join.range, kRange);
    EXPECT_EQ(join.group, kGroup);
    EXPECT_EQ(join.interface, 0u);
    deliver(ipc::encode(number, ipc::Done{}));
  }
  EXPECT_THAT(results_, ::testing::ElementsAre(true, true));
  EXPECT_EQ(process_.destroy_qp(first_qp, kNow).error().code, Errc::kBusy);
  ASSERT_TRUE(process_.detach_multicast(first_qp, kGroup).has_value());
  EXPECT_FALSE(process_.poll_message());
  ASSERT_TRUE(process_.detach_multicast(second_qp, kGroup).has_value());
  const auto leave = expect_message<ipc::LeaveGroup>().message;
  EXPECT_EQ(leave.range, kRange);
  EXPECT_EQ(leave.group, kGroup);
  EXPECT_TRUE(process_.destroy_qp(first_qp, kNow).has_value());
}

TEST_F(Groups, ARefusedJoinDetachesTheQp) {
  const auto qp = create_qp();
  attach(qp);
  answer<ipc::JoinGroup>(ipc::Done{.failed = true, .code = Errc::kNoResources, .text = "full"});
  EXPECT_THAT(results_, ::testing::ElementsAre(false));
  EXPECT_FALSE(is_attached(qp));
  expect_message<ipc::LeaveGroup>();
  EXPECT_TRUE(process_.destroy_qp(qp, kNow).has_value());
}

TEST_F(Groups, OneOfTwoInterfacesMayBeRefused) {
  const auto qp = create_qp();
  attach(qp, 2);
  answer<ipc::JoinGroup>(ipc::Done{});
  attach(qp, 3);
  answer<ipc::JoinGroup>(ipc::Done{.failed = true, .code = Errc::kSystem});
  EXPECT_TRUE(is_attached(qp));
  EXPECT_EQ(expect_message<ipc::LeaveGroup>().message.interface, 3u);
  ASSERT_TRUE(process_.detach_multicast(qp, kGroup).has_value());
  EXPECT_EQ(expect_message<ipc::LeaveGroup>().message.interface, 2u);
}

TEST_F(Groups, DroppingAPendingRequestDetachesTheQp) {
  const auto qp = create_qp();
  attach(qp);
  const auto number = expect_message<ipc::JoinGroup>().request;
  pending_.clear();
  EXPECT_FALSE(is_attached(qp));
  expect_message<ipc::LeaveGroup>();
  deliver(ipc::encode(number, ipc::Done{}));
  EXPECT_THAT(results_, SizeIs(0));
}

TEST_F(Groups, DroppingASecondRequestDoesNotDetachTheQp) {
  const auto qp = create_qp();
  attach(qp);
  answer<ipc::JoinGroup>(ipc::Done{});
  attach(qp);
  expect_message<ipc::JoinGroup>();
  pending_.pop_back();
  EXPECT_TRUE(is_attached(qp));
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(Groups, DroppingTheFirstOfTwoPendingRequestsDoesNotDetachTheQp) {
  const auto qp = create_qp();
  attach(qp);
  attach(qp);
  expect_message<ipc::JoinGroup>();
  const auto second_request = expect_message<ipc::JoinGroup>().request;
  pending_.erase(pending_.end() - 2);
  EXPECT_TRUE(is_attached(qp));
  EXPECT_FALSE(process_.poll_message());
  deliver(ipc::encode(second_request, ipc::Done{}));
  EXPECT_THAT(results_, ::testing::ElementsAre(true));
  EXPECT_TRUE(is_attached(qp));
}

TEST_F(Groups, TheLastOfTwoRefusedRequestsDetachesTheQp) {
  const auto qp = create_qp();
  attach(qp);
  attach(qp);
  answer<ipc::JoinGroup>(ipc::Done{.failed = true, .code = Errc::kNoResources});
  EXPECT_TRUE(is_attached(qp));
  answer<ipc::JoinGroup>(ipc::Done{.failed = true, .code = Errc::kNoResources});
  EXPECT_FALSE(is_attached(qp));
  expect_message<ipc::LeaveGroup>();
}

TEST_F(Groups, ARefusedRequestFromBeforeADetachDoesNotUndoALaterAttach) {
  const auto qp = create_qp();
  attach(qp);
  const auto first_request = expect_message<ipc::JoinGroup>().request;
  ASSERT_TRUE(process_.detach_multicast(qp, kGroup).has_value());
  expect_message<ipc::LeaveGroup>();
  attach(qp);
  deliver(ipc::encode(first_request, ipc::Done{.failed = true, .code = Errc::kNoResources}));
  EXPECT_TRUE(is_attached(qp));
  answer<ipc::JoinGroup>(ipc::Done{});
  EXPECT_THAT(results_, ::testing::ElementsAre(false, true));
  EXPECT_TRUE(is_attached(qp));
}

TEST_F(Groups, DroppingACompletedRequestDoesNothing) {
  const auto qp = create_qp();
  attach(qp);
  answer<ipc::JoinGroup>(ipc::Done{});
  pending_.clear();
  EXPECT_TRUE(is_attached(qp));
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(Groups, AttachRefusedByTheEngineSendsNoRequest) {
  init_.type = hca::QpType::kRc;
  const auto rc_qp = create_qp();
  const auto started = process_.attach_multicast(rc_qp, kGroup, 0, [](auto) { FAIL(); });
  EXPECT_EQ(std::get<Result<ipc::Done>>(started).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(process_.detach_multicast(rc_qp, kGroup).error().code, Errc::kInvalidArgument);
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(Groups, QpOfADeadAgentHasNoGroups) {
  const auto qp = create_qp();
  attach(qp);
  answer<ipc::JoinGroup>(ipc::Done{});
  process_.on_agent_died(kNow);
  join_agent();
  expect_message<ipc::UnfinishedWork>();
  attach(qp);  // fails: the QP belongs to the dead agent
  EXPECT_THAT(results_, SizeIs(1));
  ASSERT_TRUE(process_.detach_multicast(qp, kGroup).has_value());
  EXPECT_FALSE(process_.poll_message());
  EXPECT_TRUE(process_.destroy_qp(qp, kNow).has_value());
}

// ---- groups of ids

class IdGroups : public Groups {
 protected:
  // Creates an id that is bound to interface 2.
  ConnectionHandle bound_id() {
    const ConnectionHandle id = create_id(rdmacm::kPortSpaceUdp);
    keep_pending(process_.bind(id, {.ip = kLocalGid, .family = 4}, [](auto) {}));
    answer<ipc::Bind>(ipc::Bound{.source = {.ip = kLocalGid, .family = 4},
                                 .on_device = true,
                                 .path = {.address = {.source = kLocalGid, .interface = 2}}});
    return id;
  }
  Result<void> join(ConnectionHandle id, std::uint64_t cookie, bool receives = true) {
    return process_.join_multicast(id, {.ip = kGroup, .family = 4}, receives, cookie);
  }
};

TEST_F(IdGroups, JoinAttachesOnTheInterfaceOfTheIdAndReportsTheAddress) {
  const auto id = bound_id();
  const auto qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  EXPECT_EQ(state(qp), QpState::kRts);
  ASSERT_TRUE(join(id, 9).has_value());
  EXPECT_TRUE(cm_notices().empty());
  const auto [number, request] = expect_message<ipc::JoinGroup>();
  EXPECT_EQ(request.group, kGroup);
  EXPECT_EQ(request.interface, 2u);
  deliver(ipc::encode(number, ipc::Done{}));
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].id, id);
  EXPECT_EQ(notices[0].cookie, 77u);
  EXPECT_EQ(notices[0].group, 9u);
  EXPECT_EQ(notices[0].event.kind, EventKind::kMulticastJoin);
  EXPECT_EQ(notices[0].event.path.address.destination, kGroup);
  EXPECT_EQ(notices[0].event.param.qpn, 0xffffffu);
  EXPECT_EQ(notices[0].event.param.qkey, rdmacm::kDatagramQkey);
  ASSERT_TRUE(process_.leave_multicast(id, 9).has_value());
  EXPECT_EQ(expect_message<ipc::LeaveGroup>().message.interface, 2u);
  EXPECT_EQ(process_.leave_multicast(id, 9).error().code, Errc::kAddressNotFound);
}

TEST_F(IdGroups, JoinWithoutAQpOrOnlyToSendNeedsNoAgent) {
  const auto id = bound_id();
  ASSERT_TRUE(join(id, 1).has_value());
  const auto qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  ASSERT_TRUE(join(id, 2, false).has_value());
  EXPECT_THAT(cm_notices(), SizeIs(2));
  EXPECT_FALSE(process_.poll_message());
  EXPECT_FALSE(is_attached(qp));
  EXPECT_TRUE(process_.leave_multicast(id, 1).has_value());
  EXPECT_TRUE(process_.leave_multicast(id, 2).has_value());
}

TEST_F(IdGroups, ARefusedJoinRaisesAnEventAndDetachesTheQp) {
  const auto id = bound_id();
  const auto qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  ASSERT_TRUE(join(id, 1).has_value());
  answer<ipc::JoinGroup>(ipc::Done{.failed = true, .code = Errc::kNoResources, .text = "full"});
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.kind, EventKind::kMulticastError);
  EXPECT_EQ(notices[0].event.status, -ENOMEM);
  EXPECT_FALSE(is_attached(qp));
  EXPECT_FALSE(process_.leave_multicast(id, 1).has_value());
}

TEST_F(IdGroups, LeavingBeforeTheReplyDetachesTheQp) {
  const auto id = bound_id();
  const auto qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  ASSERT_TRUE(join(id, 1).has_value());
  const auto number = expect_message<ipc::JoinGroup>().request;
  ASSERT_TRUE(process_.leave_multicast(id, 1).has_value());
  expect_message<ipc::LeaveGroup>();
  deliver(ipc::encode(number, ipc::Done{}));
  EXPECT_TRUE(cm_notices().empty());
  EXPECT_FALSE(is_attached(qp));
}

TEST_F(IdGroups, ADestroyedIdLeavesItsGroups) {
  const auto id = bound_id();
  const auto qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  ASSERT_TRUE(join(id, 1).has_value());
  answer<ipc::JoinGroup>(ipc::Done{});
  ASSERT_TRUE(process_.destroy_id(id).has_value());
  expect_message<ipc::LeaveGroup>();
  expect_message<ipc::DestroyId>();
  EXPECT_TRUE(process_.destroy_qp(qp, kNow).has_value());
}

TEST_F(IdGroups, InvalidJoinsAreRefused) {
  const auto tcp_id = create_id();
  EXPECT_EQ(join(tcp_id, 1).error().code, Errc::kInvalidArgument);
  const auto unbound_id = create_id(rdmacm::kPortSpaceUdp);
  EXPECT_EQ(join(unbound_id, 1).error().code, Errc::kBadState);
  const auto id = bound_id();
  const auto is_refused = [&](const Gid& group) {
    const auto joined = process_.join_multicast(id, {.ip = group, .family = 4}, true, 1);
    return !joined && joined.error().code == Errc::kInvalidArgument;
  };
  EXPECT_TRUE(is_refused(kRemoteGid));
  EXPECT_TRUE(is_refused(Gid{})) << "Ethernet has no SA that could choose a group";
  EXPECT_TRUE(is_refused(wire::ipv4_gid(0)));
  EXPECT_EQ(join(id, 0).error().code, Errc::kInvalidArgument);
  ASSERT_TRUE(join(id, 1).has_value());
  EXPECT_EQ(join(id, 1).error().code, Errc::kInvalidArgument);
  process_.on_agent_died(kNow);
  EXPECT_EQ(join(id, 2).error().code, Errc::kDeviceFatal);
}

}  // namespace
}  // namespace verbena::process
