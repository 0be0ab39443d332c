#include <cerrno>

#include "process/fixture_test.h"

// Tests programs that join the next agent after their agent has died.
namespace verbena::process {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint16_t kNextRange = 0x456;

class Rejoin : public ProcessTest {
 protected:
  // Accepts a connection, which is then established.
  ConnectionHandle accept_connection(hca::QpHandle qp) {
    const ConnectionHandle listener = create_id();
    deliver(rdmacm::Event{.id = kChildId,
                          .listen_id = kFirstId,
                          .kind = EventKind::kConnectRequest,
                          .port_space = rdmacm::kPortSpaceTcp,
                          .qp_type = 2,
                          .qp = transition(),
                          .pending_disconnect = pending_disconnect()});
    const ConnectionHandle child = cm_notices().at(0).new_id;
    EXPECT_TRUE(process_.set_qp(child, qp, kNow));
    keep_pending(process_.accept(child, {}, kNow, [](auto done) { EXPECT_TRUE(done); }));
    (void)expect_message<ipc::Accept>();
    deliver(kChildId, EventKind::kEstablished);
    (void)listener;
    return child;
  }
  // Returns the types of the program's asynchronous events.
  std::vector<std::uint32_t> async_events() {
    std::vector<std::uint32_t> types;
    while (const auto notice = process_.poll_notice()) {
      types.push_back(std::get<AsyncNotice>(*notice).type);
    }
    return types;
  }
  static rdmacm::PendingDisconnect pending_disconnect() {
    return {.address = {.source = kLocalGid, .destination = kRemoteGid},
            .local_comm_id = {7},
            .remote_comm_id = {8},
            .remote_qpn = {0x456789}};
  }
  void let_agent_die() {
    process_.on_agent_died(kNow);
    while (process_.poll_notice()) {
    }
  }
  Qpn qpn(hca::QpHandle qp) { return process_.engine().query_qp(qp).value().qpn; }
};

TEST_F(Rejoin, ConnectionsOfADeadAgentAreHandedToTheNextAgent) {
  const hca::QpHandle qp = create_qp();
  accept_connection(qp);
  let_agent_die();
  join_agent();
  const auto hand_over = expect_message<ipc::UnfinishedWork>();
  EXPECT_THAT(hand_over.message.ranges, ElementsAre(kRange));
  rdmacm::PendingDisconnect expected = pending_disconnect();
  expected.local_qpn = qpn(qp);
  EXPECT_THAT(hand_over.message.disconnects, ElementsAre(expected));
  deliver(ipc::encode(hand_over.request, ipc::Done{}));

  // The second agent has replied, so the program hands nothing over to a third agent.
  EXPECT_TRUE(process_.destroy_qp(qp, kNow));
  let_agent_die();
  join_agent();
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(Rejoin, HandOverIsRepeatedIfTheNextAgentAlsoDies) {
  const hca::QpHandle qp = create_qp();
  accept_connection(qp);
  let_agent_die();
  join_agent();
  EXPECT_THAT(expect_message<ipc::UnfinishedWork>().message.disconnects, ::testing::SizeIs(1));
  let_agent_die();
  join_agent();
  EXPECT_THAT(expect_message<ipc::UnfinishedWork>().message.disconnects, ::testing::SizeIs(1));
}

TEST_F(Rejoin, ConnectionOfADestroyedIdIsHandedOver) {
  const hca::QpHandle qp = create_qp();
  const ConnectionHandle id = accept_connection(qp);
  let_agent_die();
  EXPECT_TRUE(process_.destroy_id(id));
  EXPECT_TRUE(process_.destroy_qp(qp, kNow));
  join_agent();
  const auto message = expect_message<ipc::UnfinishedWork>().message;
  EXPECT_THAT(message.disconnects, ::testing::SizeIs(1));
  EXPECT_THAT(message.ranges, IsEmpty());
}

TEST_F(Rejoin, DisconnectedConnectionIsNotHandedOver) {
  const hca::QpHandle qp = create_qp();
  accept_connection(qp);
  deliver(kChildId, EventKind::kDisconnected);
  EXPECT_TRUE(process_.destroy_qp(qp, kNow));
  let_agent_die();
  join_agent();
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(Rejoin, RequestsForOldObjectsFailAndNewObjectsWork) {
  const hca::QpHandle old_qp = create_qp();
  const ConnectionHandle old_id = accept_connection(old_qp);
  let_agent_die();
  EXPECT_EQ(state(old_qp), QpState::kError);
  join_agent();
  (void)expect_message<ipc::UnfinishedWork>();

  const auto code = [](const Result<void>& result) {
    return result ? std::nullopt : std::optional(result.error().code);
  };
  EXPECT_EQ(
      code(process_.modify_qp(old_qp, {.state = QpState::kReset}, hca::attribute::kState, kNow)),
      Errc::kDeviceFatal);
  EXPECT_EQ(
      code(process_.modify_qp(old_qp, {.state = QpState::kError}, hca::attribute::kState, kNow)),
      std::nullopt);
  const auto result =
      process_.disconnect(old_id, kNow, [](auto) { FAIL() << "the call fails at once"; });
  EXPECT_EQ(std::get<Result<ipc::Done>>(result).error().code, Errc::kDeviceFatal);

  hca::QpHandle new_qp{};
  keep_pending(process_.create_qp(init_, kNow, [&](auto qp) { new_qp = qp.value(); }));
  answer<ipc::Lease>(ipc::Leased{kNextRange});
  EXPECT_EQ(qpn(new_qp).value >> 12, kNextRange);
  const ConnectionHandle id = create_id();
  EXPECT_TRUE(process_.set_qp(id, new_qp, kNow));
  EXPECT_EQ(code(process_.set_qp(id, old_qp, kNow)), Errc::kDeviceFatal);
  EXPECT_TRUE(process_.destroy_qp(old_qp, kNow));
  EXPECT_TRUE(process_.destroy_id(old_id));
  EXPECT_FALSE(process_.poll_message()) << "the new agent does not know the old objects";
}

TEST_F(Rejoin, LoadPathOfAnOldIdFailsIfTheNextAgentLacksItsDevice) {
  report_devices({device(), {.name = "verbena1", .node_guid = {7}, .ports = {port()}}});
  create_id();
  deliver(rdmacm::Event{.id = kChildId,
                        .listen_id = kFirstId,
                        .kind = EventKind::kConnectRequest,
                        .port_space = rdmacm::kPortSpaceTcp,
                        .qp_type = 2,
                        .path = {.address = {.port = {.device = 1, .number = 1}}},
                        .qp = transition()});
  const ConnectionHandle old_id = cm_notices().at(0).new_id;
  let_agent_die();
  join_agent();
  const auto refused = process_.load_path(old_id, {.address = {.source = kLocalGid}}, {}, {});
  EXPECT_EQ(error_of(refused), Errc::kDeviceFatal);
}

// The new agent may lease the same range to the program again.  New QPs get no numbers that old QPs
// still have.
TEST_F(Rejoin, NewQpsGetNoNumbersOfOldQps) {
  std::vector<hca::QpHandle> qps;
  for (int i = 0; i < 4000; ++i) qps.push_back(create_qp());
  std::set<std::uint32_t> numbers;
  for (const auto qp : qps) numbers.insert(qpn(qp).value);
  let_agent_die();
  join_agent();
  (void)expect_message<ipc::UnfinishedWork>();
  for (int i = 0; i < 96; ++i) EXPECT_TRUE(numbers.insert(qpn(create_qp()).value).second);
}

TEST_F(Rejoin, HelloIsTheFirstMessageToTheNextAgent) {
  const ConnectionHandle id = create_id();
  let_agent_die();
  EXPECT_TRUE(process_.destroy_id(id));
  join_agent();  // checks that the first message is Hello
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(Rejoin, ManyConnectionsAreHandedOverInSeveralMessages) {
  constexpr std::size_t kMany = ipc::UnfinishedWork::kDisconnectsMax + 3;
  const ConnectionHandle listener = create_id();
  (void)listener;
  const Qpn own = qpn(create_qp());
  for (std::uint32_t i = 0; i < kMany; ++i) {
    rdmacm::PendingDisconnect pending = pending_disconnect();
    pending.local_comm_id = {100 + i};
    deliver(rdmacm::Event{.id = {std::uint64_t{0x200000000} + i},
                          .listen_id = kFirstId,
                          .kind = EventKind::kConnectRequest,
                          .port_space = rdmacm::kPortSpaceTcp,
                          .qp_type = 2,
                          .qp = transition(),
                          .pending_disconnect = pending});
    keep_pending(process_.accept(cm_notices().at(0).new_id, {.qpn = own.value}, kNow, [](auto) {}));
    (void)expect_message<ipc::Accept>();
  }
  let_agent_die();
  join_agent();
  const auto first = expect_message<ipc::UnfinishedWork>();
  EXPECT_EQ(first.message.disconnects.size(), ipc::UnfinishedWork::kDisconnectsMax);
  EXPECT_LE(ipc::encode(1, first.message).size(), ipc::kMessageBytesMax);
  EXPECT_FALSE(process_.poll_message()) << "the second message waits for the first reply";
  deliver(ipc::encode(first.request, ipc::Done{}));
  const auto second = expect_message<ipc::UnfinishedWork>();
  EXPECT_EQ(second.message.disconnects.size(), 3u);
  EXPECT_EQ(second.message.disconnects[2].local_comm_id, CommId{100 + kMany - 1});
}

// ---- leases

TEST_F(Rejoin, ManyFirstQpsAtOnceLeaseOneRange) {
  std::vector<hca::QpHandle> new_qps;
  for (int i = 0; i < 3; ++i) {
    keep_pending(process_.create_qp(init_, kNow, [&](auto qp) { new_qps.push_back(qp.value()); }));
  }
  {
    const auto dropped =
        process_.create_qp(init_, kNow, [](auto) { FAIL() << "the request was dropped"; });
    ASSERT_TRUE(std::holds_alternative<Pending>(dropped));
  }
  const auto lease = expect_message<ipc::Lease>();
  EXPECT_FALSE(process_.poll_message()) << "one lease serves all requests";
  deliver(ipc::encode(lease.request, ipc::Leased{kRange}));
  ASSERT_EQ(new_qps.size(), 3u);
  EXPECT_NE(qpn(new_qps[0]), qpn(new_qps[1]));
  EXPECT_THAT(process_.ranges(), ElementsAre(kRange));
}

TEST_F(Rejoin, ARefusedLeaseFailsAllWaitingQps) {
  int refused = 0;
  for (int i = 0; i < 3; ++i) {
    keep_pending(process_.create_qp(init_, kNow, [&](auto qp) {
      EXPECT_EQ(qp.error().code, Errc::kUnreachable);
      ++refused;
    }));
  }
  answer<ipc::Lease>(ipc::Done{.failed = true, .code = Errc::kUnreachable});
  EXPECT_EQ(refused, 3);
  create_qp();  // requests a new lease
}

// More QPs fail than a range has numbers, some of them while they wait for the lease.
TEST_F(Rejoin, FailedQpsUseUpNoNumbers) {
  hca::QpInit invalid = init_;
  invalid.pd = {};
  bool has_failed = false;
  keep_pending(process_.create_qp(invalid, kNow, [&](auto qp) { has_failed = !qp.has_value(); }));
  answer<ipc::Lease>(ipc::Leased{kRange});
  EXPECT_TRUE(has_failed);
  for (std::uint32_t i = 0; i < ipc::kLeaseQpns; ++i) {
    const auto failed = process_.create_qp(invalid, kNow, [](auto) {});
    ASSERT_TRUE(std::holds_alternative<Result<hca::QpHandle>>(failed)) << i;
  }
  for (std::uint32_t i = 0; i < ipc::kLeaseQpns; ++i) {
    const auto started = process_.create_qp(init_, kNow, [](auto) {});
    ASSERT_TRUE(std::get<Result<hca::QpHandle>>(started).has_value()) << i;
  }
  EXPECT_THAT(process_.ranges(), ElementsAre(kRange));
}

// The program has reached its limit of descriptors.  So this call fails, and the next one may
// succeed.
TEST_F(Rejoin, ARangeWithoutItsSocketsIsReturned) {
  Error error{};
  keep_pending(process_.create_qp(init_, kNow, [&](auto qp) { error = qp.error(); }));
  const auto lease = expect_message<ipc::Lease>();
  ASSERT_TRUE(process_.on_message(ipc::encode(lease.request, ipc::Leased{kRange}), kNow, false));
  EXPECT_EQ(to_errno(error), EMFILE);
  EXPECT_EQ(expect_message<ipc::ReturnRange>().message.range, kRange);
  EXPECT_THAT(process_.ranges(), IsEmpty());
  EXPECT_TRUE(process_.connected());
  create_qp();
}

// The kernel accepts no more descriptors of this user.  So this call fails, and the next one may
// succeed.
TEST_F(Rejoin, ARefusedDescriptorFailsOnlyItsRequest) {
  Error error{};
  keep_pending(process_.create_qp(init_, kNow, [&](auto qp) { error = qp.error(); }));
  const auto message = process_.poll_message();
  ASSERT_TRUE(message.has_value());
  ASSERT_TRUE(process_.on_message_refused(*message).has_value());
  EXPECT_EQ(to_errno(error), EMFILE);
  EXPECT_TRUE(process_.connected());
  ASSERT_TRUE(process_.on_message_refused(*message).has_value());  // the request has failed already
  create_qp();
}

// ---- the port

TEST_F(Rejoin, PortChangesRaiseEvents) {
  ipc::Port down_port = port();
  down_port.active = false;
  report_port(port());
  EXPECT_THAT(async_events(), IsEmpty());
  report_port(down_port);
  EXPECT_THAT(async_events(), ElementsAre(10u));  // IBV_EVENT_PORT_ERR
  report_port(port());
  EXPECT_THAT(async_events(), ElementsAre(9u));  // IBV_EVENT_PORT_ACTIVE
}

TEST_F(Rejoin, GidTableChangesRaiseEvents) {
  ipc::Port changed_port = port();
  changed_port.gids.push_back({.gid = kRemoteGid, .interface = 2, .index = 1});
  report_port(changed_port);
  EXPECT_THAT(async_events(), ElementsAre(18u));  // IBV_EVENT_GID_CHANGE
  changed_port.gids[1].mtu_bytes = 9000;          // does not change the GID table
  report_port(changed_port);
  EXPECT_THAT(async_events(), IsEmpty());
  changed_port.gids.pop_back();
  changed_port.active = false;
  report_port(changed_port);
  EXPECT_THAT(async_events(), ElementsAre(10u, 18u));
}

}  // namespace
}  // namespace verbena::process
