#include <cerrno>
#include <memory>

#include "ipc/counters.h"
#include "process/fixture_test.h"
#include "wire/mgid.h"

// Tests ids that join multicast groups on InfiniBand.  The test acts as the agent, so it also gives
// the answers of the subnet administration.

namespace verbena::process {
namespace {

using ::testing::SizeIs;

constexpr std::uint8_t kPortNumber = 2;
const Gid kPortGid = [] {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[15] = std::byte{0x21};
  return gid;
}();
const Gid kIpGroup = wire::ipv4_gid(0xef4d0105);
constexpr Pkey kPartition{0x8001};
const Gid kMgid = wire::multicast_mgid(kIpGroup, wire::MgidUser::kRdmaCm, kPartition);
constexpr Qkey kUdpQkey{rdmacm::kDatagramQkey};
constexpr Qkey kIpoibQkey{0x0b1b};

class SubnetGroups : public ProcessTest {
 protected:
  SubnetGroups() { init_.type = hca::QpType::kUd; }
  void SetUp() override {
    ProcessTest::SetUp();
    report_subnet_port();
  }
  // Makes the device an HCA whose second port is on a subnet.
  void report_subnet_port() {
    const ipc::Port port{.link_layer = LinkLayer::kInfiniband,
                         .active = true,
                         .active_mtu = 4,
                         .gids = {{.gid = kPortGid, .index = 0}},
                         .pkeys = {wire::kDefaultPkey, kPartition},
                         .lid = {5}};
    report_devices({{.ports = {port, port}}});
  }
  ConnectionHandle bound_id(std::uint32_t port_space = rdmacm::kPortSpaceUdp) {
    const ConnectionHandle id = create_id(port_space);
    keep_pending(process_.bind(id, {.ip = kLocalGid, .family = 4}, [](auto) {}));
    answer<ipc::Bind>(ipc::Bound{.source = {.ip = kLocalGid, .family = 4},
                                 .on_device = true,
                                 .path = {.address = {.link_layer = LinkLayer::kInfiniband,
                                                      .source = kPortGid,
                                                      .port = {0, kPortNumber}},
                                          .pkey = kPartition.value,
                                          .packet_life_time = 18}});
    return id;
  }
  hca::QpHandle give_qp(ConnectionHandle id) {
    const auto qp = create_qp();
    EXPECT_TRUE(process_.set_qp(id, qp, kNow).has_value());
    return qp;
  }
  Result<void> join(ConnectionHandle id, std::uint64_t cookie, bool receives = true) {
    return process_.join_multicast(id, {.ip = kIpGroup, .family = 4}, receives, cookie);
  }
  static ipc::MulticastJoined join_reply(std::uint64_t membership, Qkey qkey = kUdpQkey) {
    return {.membership = membership,
            .mgid = kMgid,
            .mlid = {0xc007},
            .qkey = qkey,
            .pkey = kPartition,
            .mtu = 3,
            .rate = 6,
            .service_level = 4,
            .traffic_class = 9,
            .hop_limit = 0,
            .flow_label = 0x12345};
  }
  // Joins a group and delivers all replies.  If the id has a QP, the join must attach the QP.
  void complete_join(ConnectionHandle id, std::uint64_t cookie, const ipc::MulticastJoined& reply) {
    ASSERT_TRUE(join(id, cookie).has_value());
    answer<ipc::JoinMulticast>(reply);
    if (process_.connection(id).value()->qp) answer<ipc::JoinGroup>(ipc::Done{});
    const auto notices = cm_notices();
    ASSERT_THAT(notices, SizeIs(1));
    ASSERT_EQ(notices[0].event.kind, EventKind::kMulticastJoin);
  }
  bool is_attached(hca::QpHandle qp) {
    const bool attached = process_.engine().detach_multicast(qp, kMgid).has_value();
    if (attached) process_.engine().attach_multicast(qp, kMgid).value();
    return attached;
  }
  Qkey qkey(hca::QpHandle qp) { return process_.engine().query_qp(qp).value().attributes.qkey; }
  // Returns the errno of the next event.  REQUIRES: there is one event, a MULTICAST_ERROR.
  int next_error() {
    const auto notices = cm_notices();
    EXPECT_THAT(notices, SizeIs(1));
    if (notices.size() != 1) return 0;
    EXPECT_EQ(notices[0].event.kind, EventKind::kMulticastError);
    EXPECT_FALSE(notices[0].why.empty());
    return -notices[0].event.status;
  }
  bool has_no_unsent_message() { return !process_.poll_message(); }
};

TEST_F(SubnetGroups, AJoinAttachesTheQpAndReportsTheParametersOfTheGroup) {
  const auto id = bound_id();
  const auto qp = give_qp(id);
  ASSERT_TRUE(join(id, 9).has_value());
  const auto [number, request] = expect_message<ipc::JoinMulticast>();
  EXPECT_EQ(request.port, (PortId{0, kPortNumber}));
  EXPECT_EQ(request.port_space, rdmacm::kPortSpaceUdp);
  EXPECT_EQ(request.pkey, kPartition);
  EXPECT_EQ(request.group, kIpGroup);
  EXPECT_FALSE(request.is_mgid);
  EXPECT_EQ(request.join_state, 1);
  EXPECT_TRUE(has_no_unsent_message());
  EXPECT_FALSE(is_attached(qp));

  deliver(ipc::encode(number, join_reply(33)));
  EXPECT_TRUE(cm_notices().empty()) << "the sockets are not members yet";
  const auto [attach_number, attach] = expect_message<ipc::JoinGroup>();
  EXPECT_EQ(attach.range, kRange);
  EXPECT_EQ(attach.group, kMgid);
  EXPECT_EQ(attach.interface, kPortNumber);
  deliver(ipc::encode(attach_number, ipc::Done{}));
  EXPECT_TRUE(is_attached(qp));

  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].id, id);
  EXPECT_EQ(notices[0].cookie, 77u);
  EXPECT_EQ(notices[0].group, 9u);
  EXPECT_EQ(notices[0].group_rate, 6);
  const rdmacm::Event& event = notices[0].event;
  EXPECT_EQ(event.kind, EventKind::kMulticastJoin);
  EXPECT_EQ(event.status, 0);
  EXPECT_EQ(event.path, (rdmacm::PathInfo{.address = {.link_layer = LinkLayer::kInfiniband,
                                                      .source = kPortGid,
                                                      .destination = kMgid,
                                                      .flow_label = 0x12345,
                                                      .traffic_class = 9,
                                                      .hop_limit = 0,
                                                      .source_lid = {5},
                                                      .destination_lid = {0xc007},
                                                      .service_level = 4,
                                                      .has_grh = true,
                                                      .port = {0, kPortNumber}},
                                          .pkey = kPartition.value,
                                          .mtu = 3,
                                          .packet_life_time = 18}));
  EXPECT_EQ(event.param.qpn, 0xffffffu);
  EXPECT_EQ(event.param.qkey, kUdpQkey.value);

  ASSERT_TRUE(process_.leave_multicast(id, 9).has_value());
  EXPECT_EQ(expect_message<ipc::LeaveGroup>().message.group, kMgid);
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 33u);
  EXPECT_FALSE(is_attached(qp));
  EXPECT_FALSE(process_.leave_multicast(id, 9).has_value());
  EXPECT_TRUE(has_no_unsent_message());
}

TEST_F(SubnetGroups, AnIdWithoutAQpAlsoJoinsTheGroup) {
  const auto id = bound_id();
  ASSERT_TRUE(join(id, 1).has_value());
  answer<ipc::JoinMulticast>(join_reply(4));
  EXPECT_EQ(cm_notices().at(0).event.kind, EventKind::kMulticastJoin);
  EXPECT_TRUE(has_no_unsent_message());
  ASSERT_TRUE(process_.destroy_id(id).has_value());
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 4u);
}

TEST_F(SubnetGroups, ASendOnlyJoinAttachesNoQp) {
  const auto id = bound_id();
  const auto qp = give_qp(id);
  ASSERT_TRUE(join(id, 1, false).has_value());
  const auto [number, request] = expect_message<ipc::JoinMulticast>();
  EXPECT_EQ(request.join_state, 8);
  deliver(ipc::encode(number, join_reply(4)));
  EXPECT_EQ(cm_notices().at(0).event.path.address.destination_lid, Lid{0xc007});
  EXPECT_FALSE(is_attached(qp));
  EXPECT_TRUE(has_no_unsent_message());
}

TEST_F(SubnetGroups, EachJoinOfAnIdSendsItsOwnLeave) {
  const auto id = bound_id();
  complete_join(id, 1, join_reply(4));
  complete_join(id, 2, join_reply(5));
  ASSERT_TRUE(process_.leave_multicast(id, 2).has_value());
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 5u);
  ASSERT_TRUE(process_.leave_multicast(id, 1).has_value());
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 4u);
}

// ---- a join that ends early

TEST_F(SubnetGroups, LeavingBeforeTheReplySendsALeaveAfterTheReply) {
  const auto id = bound_id();
  const auto qp = give_qp(id);
  ASSERT_TRUE(join(id, 1).has_value());
  const auto number = expect_message<ipc::JoinMulticast>().request;
  ASSERT_TRUE(process_.leave_multicast(id, 1).has_value());
  EXPECT_TRUE(has_no_unsent_message()) << "the membership has no number yet";
  ASSERT_TRUE(join(id, 1).has_value()) << "the cookie is free again";
  const auto second_number = expect_message<ipc::JoinMulticast>().request;
  deliver(ipc::encode(number, join_reply(4)));
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 4u);
  EXPECT_TRUE(cm_notices().empty());
  EXPECT_FALSE(is_attached(qp));
  deliver(ipc::encode(second_number, join_reply(5)));
  expect_message<ipc::JoinGroup>();
  EXPECT_TRUE(is_attached(qp));
}

TEST_F(SubnetGroups, ADestroyedIdLeavesItsGroupsAfterTheReplies) {
  const auto id = bound_id();
  ASSERT_TRUE(join(id, 1).has_value());
  ASSERT_TRUE(join(id, 2).has_value());
  const auto refused_number = expect_message<ipc::JoinMulticast>().request;
  const auto number = expect_message<ipc::JoinMulticast>().request;
  ASSERT_TRUE(process_.destroy_id(id).has_value());
  expect_message<ipc::DestroyId>();
  EXPECT_TRUE(has_no_unsent_message());
  deliver(ipc::encode(refused_number, ipc::Done{.failed = true, .code = Errc::kTimedOut}));
  EXPECT_TRUE(has_no_unsent_message()) << "a join that failed sends no leave";
  deliver(ipc::encode(number, join_reply(4)));
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 4u);
  EXPECT_TRUE(cm_notices().empty());
}

TEST_F(SubnetGroups, LeavingWhileTheQpIsBeingAttachedUndoesTheJoinAndTheAttachment) {
  const auto id = bound_id();
  const auto qp = give_qp(id);
  ASSERT_TRUE(join(id, 1).has_value());
  answer<ipc::JoinMulticast>(join_reply(4));
  const auto number = expect_message<ipc::JoinGroup>().request;
  ASSERT_TRUE(process_.leave_multicast(id, 1).has_value());
  expect_message<ipc::LeaveGroup>();
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 4u);
  EXPECT_FALSE(is_attached(qp));
  deliver(ipc::encode(number, ipc::Done{}));
  EXPECT_TRUE(cm_notices().empty());
}

TEST_F(SubnetGroups, ARefusedJoinIsReportedWithTheReasonAndSendsNoLeave) {
  const auto id = bound_id();
  const auto qp = give_qp(id);
  ASSERT_TRUE(join(id, 1).has_value());
  answer<ipc::JoinMulticast>(
      ipc::Done{.failed = true, .code = Errc::kTimedOut, .text = "the SA does not answer"});
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.kind, EventKind::kMulticastError);
  EXPECT_EQ(notices[0].event.status, -ETIMEDOUT);
  EXPECT_EQ(notices[0].why, "the SA does not answer");
  EXPECT_EQ(notices[0].group, 1u);
  EXPECT_FALSE(is_attached(qp));
  EXPECT_TRUE(has_no_unsent_message());
  EXPECT_FALSE(process_.leave_multicast(id, 1).has_value());
}

TEST_F(SubnetGroups, AnIdWhoseQpCannotBeAttachedLeavesTheGroup) {
  const auto id = bound_id();
  const auto qp = give_qp(id);
  ASSERT_TRUE(join(id, 1).has_value());
  answer<ipc::JoinMulticast>(join_reply(4));
  answer<ipc::JoinGroup>(ipc::Done{.failed = true, .code = Errc::kNoResources, .text = "full"});
  EXPECT_EQ(next_error(), ENOMEM);
  EXPECT_FALSE(is_attached(qp));
  expect_message<ipc::LeaveGroup>();
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 4u);
}

TEST_F(SubnetGroups, ALostGroupIsReportedAndSendsNoLeave) {
  const auto id = bound_id();
  const auto qp = give_qp(id);
  complete_join(id, 1, join_reply(4));
  ASSERT_TRUE(is_attached(qp));
  deliver(ipc::encode(0, ipc::MulticastLost{99, ENETRESET}));  // an unknown membership
  EXPECT_TRUE(cm_notices().empty());
  deliver(ipc::encode(0, ipc::MulticastLost{4, ENETRESET}));
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.kind, EventKind::kMulticastError);
  EXPECT_EQ(notices[0].event.status, -ENETRESET);
  EXPECT_EQ(notices[0].group, 1u);
  EXPECT_EQ(notices[0].event.path.address.destination, kMgid);
  EXPECT_FALSE(is_attached(qp));
  expect_message<ipc::LeaveGroup>();
  EXPECT_TRUE(has_no_unsent_message());
  EXPECT_FALSE(process_.leave_multicast(id, 1).has_value());
  deliver(ipc::encode(0, ipc::MulticastLost{4, ENETRESET}));
  EXPECT_TRUE(cm_notices().empty());
  complete_join(id, 1, join_reply(5));  // the program joins again
  EXPECT_TRUE(is_attached(qp));
}

TEST_F(SubnetGroups, AGroupMayBeLostWhileTheQpIsBeingAttached) {
  const auto id = bound_id();
  const auto qp = give_qp(id);
  ASSERT_TRUE(join(id, 1).has_value());
  answer<ipc::JoinMulticast>(join_reply(4));
  const auto number = expect_message<ipc::JoinGroup>().request;
  deliver(ipc::encode(0, ipc::MulticastLost{4, -1}));
  EXPECT_EQ(next_error(), EIO) << "an invalid errno becomes EIO";
  expect_message<ipc::LeaveGroup>();
  deliver(ipc::encode(number, ipc::Done{}));
  EXPECT_TRUE(cm_notices().empty());
  EXPECT_FALSE(is_attached(qp));
  EXPECT_TRUE(has_no_unsent_message());
}

TEST_F(SubnetGroups, MembershipsEndWhenTheAgentDies) {
  const auto old_id = bound_id();
  complete_join(old_id, 1, join_reply(4));
  ASSERT_TRUE(join(old_id, 2).has_value());
  expect_message<ipc::JoinMulticast>();
  process_.on_agent_died(kNow);
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(2));
  EXPECT_EQ(notices[0].event.kind, EventKind::kDeviceRemoval);
  EXPECT_EQ(notices[1].event.kind, EventKind::kMulticastError);
  join_agent();
  report_subnet_port();
  const auto id = bound_id();
  complete_join(id, 1, join_reply(4));  // the next agent uses the same number
  ASSERT_TRUE(process_.destroy_id(old_id).has_value());
  EXPECT_TRUE(has_no_unsent_message()) << "the membership of the old id has ended";
  ASSERT_TRUE(process_.leave_multicast(id, 1).has_value());
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 4u);
}

// ---- the address of the group

TEST_F(SubnetGroups, TheSubnetChoosesAGroupForAWildcard) {
  const auto id = bound_id();
  std::uint64_t cookie = 0;
  for (const Gid& group : {wire::ipv4_gid(0), Gid{}}) {
    ASSERT_TRUE(process_.join_multicast(id, {.ip = group}, true, ++cookie).has_value());
    const auto [number, request] = expect_message<ipc::JoinMulticast>();
    EXPECT_EQ(request.group, group);
    deliver(ipc::encode(number, join_reply(cookie)));
    EXPECT_EQ(cm_notices().at(0).event.path.address.destination, kMgid);
  }
}

TEST_F(SubnetGroups, AnMgidIsNotChanged) {
  const auto id = bound_id();
  const rdmacm::SocketAddress group{.ip = kMgid, .family = 6, .by_gid = true};
  ASSERT_TRUE(process_.join_multicast(id, group, true, 1).has_value());
  const auto request = expect_message<ipc::JoinMulticast>().message;
  EXPECT_EQ(request.group, kMgid);
  EXPECT_TRUE(request.is_mgid);
}

TEST_F(SubnetGroups, AnAddressThatIsNotAGroupIsRefused) {
  const auto id = bound_id();
  EXPECT_EQ(process_.join_multicast(id, {.ip = kRemoteGid, .family = 4}, true, 1).error().code,
            Errc::kInvalidArgument);
  EXPECT_TRUE(has_no_unsent_message());
  EXPECT_TRUE(join(id, 1).has_value()) << "the cookie was not used";
}

TEST_F(SubnetGroups, AReplyWithoutAnMlidIsAnErrorAndSendsALeave) {
  const auto id = bound_id();
  ASSERT_TRUE(join(id, 1).has_value());
  ipc::MulticastJoined reply = join_reply(4);
  reply.mlid = {};
  answer<ipc::JoinMulticast>(reply);
  EXPECT_EQ(next_error(), EINVAL);
  EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 4u);
}

// If the agent repeats the number of a membership, a leave would end the membership of another
// join.
TEST_F(SubnetGroups, AReplyWithTheMembershipOfAnotherJoinSendsNoLeave) {
  const auto id = bound_id();
  complete_join(id, 1, join_reply(4));
  for (const std::uint64_t membership : {4U, 0U}) {
    ASSERT_TRUE(join(id, 2).has_value());
    answer<ipc::JoinMulticast>(join_reply(membership));
    EXPECT_EQ(next_error(), EPROTO);
    ASSERT_TRUE(join(id, 2).has_value());
    const auto number = expect_message<ipc::JoinMulticast>().request;
    ASSERT_TRUE(process_.leave_multicast(id, 2).has_value());
    deliver(ipc::encode(number, join_reply(membership)));
    EXPECT_TRUE(has_no_unsent_message());
  }
}

// ---- Q_Keys

TEST_F(SubnetGroups, AnIpoibIdTakesTheQkeyOfItsFirstGroup) {
  const auto id = bound_id(rdmacm::kPortSpaceIpoib);
  const auto qp = give_qp(id);
  ASSERT_TRUE(join(id, 1).has_value());
  const auto [number, request] = expect_message<ipc::JoinMulticast>();
  EXPECT_EQ(request.port_space, rdmacm::kPortSpaceIpoib);
  deliver(ipc::encode(number, join_reply(4, kIpoibQkey)));
  answer<ipc::JoinGroup>(ipc::Done{});
  EXPECT_EQ(cm_notices().at(0).event.param.qkey, kIpoibQkey.value);
  EXPECT_EQ(qkey(qp), kIpoibQkey) << "the QP existed before the Q_Key was known";
  EXPECT_EQ(state(qp), QpState::kRts);
  const auto init = process_.transition(id, QpState::kInit);
  ASSERT_TRUE(init.has_value());
  EXPECT_EQ(init->attributes.qkey, kIpoibQkey);
  ASSERT_TRUE(process_.leave_multicast(id, 1).has_value());
  EXPECT_EQ(qkey(give_qp(id)), kIpoibQkey);
}

TEST_F(SubnetGroups, AGroupWithAnotherQkeyIsRefusedAndSendsALeave) {
  for (const std::uint32_t space : {rdmacm::kPortSpaceIpoib, rdmacm::kPortSpaceUdp}) {
    const auto id = bound_id(space);
    const bool ipoib = space == rdmacm::kPortSpaceIpoib;
    complete_join(id, 1, join_reply(4, ipoib ? kIpoibQkey : kUdpQkey));
    for (const Qkey other_qkey : {ipoib ? kUdpQkey : kIpoibQkey, Qkey{}}) {
      ASSERT_TRUE(join(id, 2).has_value());
      answer<ipc::JoinMulticast>(join_reply(5, other_qkey));
      EXPECT_EQ(next_error(), EINVAL);
      EXPECT_EQ(expect_message<ipc::LeaveMulticast>().message.membership, 5u);
    }
    EXPECT_TRUE(process_.leave_multicast(id, 1).has_value()) << "the first join remains";
    expect_message<ipc::LeaveMulticast>();
  }
}

TEST_F(SubnetGroups, AQkeyOfTheProgramIsNotChanged) {
  const auto id = bound_id(rdmacm::kPortSpaceIpoib);
  const auto qp = give_qp(id);
  ASSERT_TRUE(process_.modify_qp(qp, {.qkey = {0x777}}, hca::attribute::kQkey, kNow).has_value());
  complete_join(id, 1, join_reply(4, kIpoibQkey));
  EXPECT_EQ(qkey(qp), Qkey{0x777});
}

TEST_F(SubnetGroups, TheResolvedAddressMayCarryTheQkeyOfIpoib) {
  const auto id = create_id(rdmacm::kPortSpaceIpoib);
  EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
  expect_message<ipc::ResolveAddress>();
  deliver(rdmacm::Event{.id = kFirstId,
                        .kind = EventKind::kAddrResolved,
                        .path = {.address = {.port = {0, kPortNumber}}},
                        .param = {.qkey = kIpoibQkey.value}});
  EXPECT_EQ(qkey(give_qp(id)), kIpoibQkey);
}

TEST_F(SubnetGroups, AnAcceptedDatagramRequestCarriesTheQkeyOfTheListener) {
  const auto id = bound_id(rdmacm::kPortSpaceIpoib);
  complete_join(id, 1, join_reply(4, kIpoibQkey));
  deliver(rdmacm::Event{.id = kChildId,
                        .listen_id = kFirstId,
                        .kind = EventKind::kConnectRequest,
                        .port_space = rdmacm::kPortSpaceIpoib,
                        .qp_type = rdmacm::kQpTypeUd});
  const auto child = cm_notices().at(0).new_id;
  keep_pending(process_.accept(child, {.qpn = 7}, kNow, [](const auto&) {}));
  EXPECT_EQ(expect_message<ipc::Accept>().message.param.qkey, kIpoibQkey.value);
}

// Ethernet has no IPoIB, so the Q_Key is unknown.
TEST_F(ProcessTest, AnIpoibIdOnEthernetGetsNoQpAndNoGroup) {
  const auto id = create_id(rdmacm::kPortSpaceIpoib);
  keep_pending(process_.bind(id, {.ip = kLocalGid, .family = 4}, [](auto) {}));
  answer<ipc::Bind>(ipc::Bound{.source = {.ip = kLocalGid, .family = 4},
                               .on_device = true,
                               .path = {.address = {.source = kLocalGid, .interface = 2}}});
  init_.type = hca::QpType::kUd;
  EXPECT_EQ(process_.set_qp(id, create_qp(), kNow).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(process_.transition(id, QpState::kInit).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(process_.join_multicast(id, {.ip = kIpGroup, .family = 4}, true, 1).error().code,
            Errc::kAddressNotFound);
  EXPECT_FALSE(process_.leave_multicast(id, 1).has_value());
}

// ---- limits

TEST_F(SubnetGroups, JoinsThatWaitForTheSubnetAreLimitedAndCounted) {
  auto memory = std::make_unique<std::array<std::uint64_t, ipc::QpTable::kBytes / 8>>();
  const auto bytes = std::as_writable_bytes(std::span(*memory));
  process_.set_qp_table(bytes);
  const auto id = bound_id();
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 1; i <= GroupJoins::kWaitingMax; ++i) {
    ASSERT_TRUE(join(id, i).has_value());
    ASSERT_TRUE(process_.leave_multicast(id, i).has_value())
        << "a join that was left counts until its reply comes";
    numbers.push_back(expect_message<ipc::JoinMulticast>().request);
  }
  EXPECT_EQ(join(id, 1).error().code, Errc::kNoResources);
  process_.update_status_now(kNow);
  const auto counters = ipc::QpTable(bytes).counters();
  const auto counter = std::ranges::find(counters, "limit_joins", &ipc::NamedCount::name);
  ASSERT_NE(counter, counters.end());
  EXPECT_EQ(counter->value, 1u);
  deliver(ipc::encode(numbers[0], ipc::Done{.failed = true, .code = Errc::kTimedOut}));
  EXPECT_TRUE(join(id, 1).has_value());
}

TEST_F(SubnetGroups, LeavingAGroupThatHasEndedDropsItsEvent) {
  const auto id = bound_id();
  complete_join(id, 9, join_reply(33));
  deliver(ipc::encode(0, ipc::MulticastLost{.membership = 33, .error = ENETRESET}));
  const auto left = process_.leave_multicast(id, 9);
  ASSERT_FALSE(left.has_value());
  EXPECT_EQ(left.error().code, Errc::kAddressNotFound);
  EXPECT_TRUE(cm_notices().empty());
}

}  // namespace
}  // namespace verbena::process
