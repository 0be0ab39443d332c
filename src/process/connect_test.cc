#include "process/fixture_test.h"

// Tests the steps of a connection: which steps do not wait for the agent, which calls fail at once,
// and what happens if the agent refuses a step later.
namespace verbena::process {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ProcessTest, AConnectionWaitsOnlyForEvents) {
  const ConnectionHandle id = create_resolved_id();
  EXPECT_THAT(created_ids_, ElementsAre(kFirstId));
  ASSERT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
  EXPECT_TRUE(is_done(process_.connect(id, {}, {})));
  EXPECT_EQ(expect_message<ipc::Connect>().request, 0u);
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kConnectResponse, .qp = transition()});
  EXPECT_EQ(expect_message<ipc::Establish>().request, 0u);
  EXPECT_TRUE(is_done(process_.disconnect(id, kNow, {})));
  EXPECT_EQ(expect_message<ipc::Disconnect>().request, 0u);
  EXPECT_TRUE(is_done(process_.disconnect(id, kNow, {})));
  deliver(kFirstId, EventKind::kDisconnected);
  EXPECT_TRUE(is_done(process_.disconnect(id, kNow, {})));
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(ProcessTest, TheRouteIsResolvedWithTheAddress) {
  const ConnectionHandle id = create_id();
  EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
  deliver(rdmacm::Event{
      .id = kFirstId,
      .kind = EventKind::kAddrResolved,
      .source = {.ip = kLocalGid, .family = 4},
      .path = {.address = {.source = kLocalGid, .destination = kRemoteGid, .flow_label = 5}}});
  drop_messages();
  keep_pending(process_.set_option(id, 0, 0, 0x28,
                                   [](const auto& result) { EXPECT_TRUE(result.has_value()); }));
  answer<ipc::SetOption>(ipc::Done{});
  keep_pending(process_.set_option(id, 0, 3, 20,
                                   [](const auto& result) { EXPECT_TRUE(result.has_value()); }));
  answer<ipc::SetOption>(ipc::Done{});
  EXPECT_TRUE(is_done(process_.resolve_route(id, std::chrono::seconds(1), {})));
  EXPECT_FALSE(process_.poll_message());
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(2));
  EXPECT_EQ(notices[1].id, id);
  EXPECT_EQ(notices[1].cookie, notices[0].cookie);
  EXPECT_EQ(notices[1].event.kind, EventKind::kRouteResolved);
  EXPECT_EQ(notices[1].event.source, notices[0].event.source);
  EXPECT_EQ(notices[1].event.path.address.flow_label, 5u);
  EXPECT_EQ(notices[1].event.path.address.traffic_class, 0x28);
  EXPECT_EQ(process_.connection(id).value()->path, notices[1].event.path);
  // An option that is set later does not change the resolved route.
  keep_pending(process_.set_option(id, 0, 0, 0x10,
                                   [](const auto& result) { EXPECT_TRUE(result.has_value()); }));
  answer<ipc::SetOption>(ipc::Done{});
  ASSERT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
  EXPECT_TRUE(is_done(process_.connect(id, {}, {})));
  EXPECT_EQ(expect_message<ipc::Connect>().message.traffic_class, 0x28);
}

// If the program dies, the agent ends its connections itself, so messages without data may wait.
// Messages with data of the program may not wait.  Messages for whose effect somebody waits may not
// wait either.
TEST_F(ProcessTest, OnlyMessagesWithoutDataMayWait) {
  const ConnectionHandle id = create_resolved_id();
  EXPECT_TRUE(process_.messages_may_wait());
  ASSERT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
  ASSERT_TRUE(is_done(process_.connect(id, {}, {})));
  EXPECT_TRUE(process_.messages_may_wait());
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kConnectResponse, .qp = transition()});
  EXPECT_TRUE(process_.messages_may_wait()) << "the report of ESTABLISHED has no data";
  ASSERT_TRUE(is_done(process_.disconnect(id, kNow, {})));
  ASSERT_TRUE(process_.destroy_id(id).has_value());
  EXPECT_TRUE(process_.messages_may_wait()) << "the end of a connection has no data";
  EXPECT_EQ(process_.messages(), 4u);
  drop_messages();

  const ConnectionHandle listener = create_id();
  keep_pending(process_.listen(listener, 1, [](const auto&) {}));
  EXPECT_FALSE(process_.messages_may_wait()) << "the program waits for the reply";
  const auto listener_name = expect_message<ipc::Listen>().message.id;
  EXPECT_TRUE(process_.messages_may_wait());
  const ConnectionHandle child = report_connect_request(listener_name);
  ASSERT_TRUE(is_done(process_.reject(child, {}, {})));
  EXPECT_FALSE(process_.messages_may_wait()) << "a reject has a reason for the peer";
  drop_messages();
  ASSERT_TRUE(process_.destroy_id(listener).has_value());
  EXPECT_FALSE(process_.messages_may_wait()) << "another program may wait for the listener's port";
}

TEST_F(ProcessTest, ADatagramEndsAfterAMessageThatExpectsAReply) {
  std::vector<std::uint64_t> memory(ipc::QpTable::kBytes / 8 + 1);
  process_.set_qp_table(std::as_writable_bytes(std::span(memory)));
  drop_messages();
  const auto resolve = [&] {
    const ConnectionHandle id = create_id();
    EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
    return id;
  };
  const auto types_of_next_datagram = [&] {
    auto datagram = process_.poll_message().value();
    while (process_.poll_another(datagram)) {
    }
    std::vector<ipc::Type> types;
    std::span<const std::byte> rest = datagram.message;
    while (!rest.empty()) types.push_back(ipc::open(ipc::take_message(rest).value())->type);
    return types;
  };
  using enum ipc::Type;
  const ConnectionHandle id = resolve();
  keep_pending(process_.set_option(id, 0, 0, 1, [](const auto&) {}));
  keep_pending(process_.set_option(id, 0, 0, 2, [](const auto&) {}));
  EXPECT_THAT(types_of_next_datagram(), ElementsAre(kCreateId, kResolveAddress, kSetOption));
  EXPECT_THAT(types_of_next_datagram(), ElementsAre(kSetOption))
      << "a datagram has at most one request with a reply";
  // The table's descriptor belongs to one message.
  (void)resolve();
  keep_pending(process_.create_qp(init_, kNow, [](const auto&) {}));
  (void)resolve();
  EXPECT_THAT(types_of_next_datagram(), ElementsAre(kCreateId, kResolveAddress));
  EXPECT_THAT(types_of_next_datagram(), ElementsAre(kLease));
  EXPECT_THAT(types_of_next_datagram(), ElementsAre(kCreateId, kResolveAddress));
  // A datagram has a limited size.
  for (int i = 0; i < 500; ++i) (void)resolve();
  std::size_t total = 0, max_count = 0;
  while (total < 1000) {
    const std::size_t count = types_of_next_datagram().size();
    total += count;
    max_count = std::max(max_count, count);
  }
  EXPECT_GT(max_count, 100u);
  EXPECT_LT(max_count, 1000u);
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(ProcessTest, ThePassiveSideDoesNotWaitForTheAgent) {
  create_id();
  const ConnectionHandle child = report_connect_request(kFirstId);
  ASSERT_TRUE(process_.set_qp(child, create_qp(), kNow).has_value());
  EXPECT_TRUE(is_done(process_.accept(child, {}, kNow, {})));
  EXPECT_EQ(expect_message<ipc::Accept>().request, 0u);
  EXPECT_EQ(error_of(process_.accept(child, {}, kNow, {})), Errc::kBadState);
  EXPECT_EQ(error_of(process_.reject(child, {}, {})), Errc::kBadState);
  deliver(kChildId, EventKind::kEstablished);
  deliver(kChildId, EventKind::kDisconnected);
  EXPECT_TRUE(is_done(process_.disconnect(child, kNow, {})));
  EXPECT_FALSE(process_.poll_message()) << "the agent knows that the connection has ended";

  (void)cm_notices();
  const ConnectionHandle other = report_connect_request(kFirstId);
  EXPECT_TRUE(is_done(process_.reject(other, {}, {})));
  EXPECT_EQ(expect_message<ipc::Reject>().request, 0u);
  EXPECT_EQ(error_of(process_.accept(other, {}, kNow, {})), Errc::kBadState);
}

// The REQ tells how often this side retries, and the REP tells how often the peer does.
TEST_F(ProcessTest, MoreReadsThanTheDeviceSupportsAreRefused) {
  const std::uint8_t limit = process_.engine().limits().max_rd_atomic;
  const auto too_many = static_cast<std::uint8_t>(limit + 1);
  const rdmacm::ConnParam wrong_params[] = {
      {.responder_resources = too_many}, {.initiator_depth = too_many}, {.initiator_depth = 0xfe}};
  const ConnectionHandle id = create_resolved_id();
  ASSERT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
  const ConnectionHandle child = report_connect_request(kFirstId);
  ASSERT_TRUE(process_.set_qp(child, create_qp(), kNow).has_value());
  for (const rdmacm::ConnParam& param : wrong_params) {
    EXPECT_EQ(error_of(process_.connect(id, param, {})), Errc::kInvalidArgument);
    EXPECT_EQ(error_of(process_.accept(child, param, kNow, {})), Errc::kInvalidArgument);
  }
  const rdmacm::ConnParam maximum{.responder_resources = 0xff, .initiator_depth = limit};
  EXPECT_TRUE(is_done(process_.connect(id, maximum, {})));
  EXPECT_EQ(expect_message<ipc::Connect>().message.param.responder_resources, limit);
  EXPECT_TRUE(is_done(process_.accept(child, maximum, kNow, {})));
}

TEST_F(ProcessTest, DisconnectBeforeTheAnswerOnlyMovesTheQpToTheErrorState) {
  const ConnectionHandle id = create_resolved_id();
  const hca::QpHandle qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  EXPECT_EQ(error_of(process_.disconnect(id, kNow, {})), Errc::kBadState);
  const hca::QpHandle other_qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, other_qp, kNow).has_value());
  ASSERT_TRUE(is_done(process_.connect(id, {}, {})));
  drop_messages();
  EXPECT_TRUE(is_done(process_.disconnect(id, kNow, {})));
  EXPECT_EQ(state(other_qp), QpState::kError);
  EXPECT_FALSE(process_.poll_message()) << "there is nothing to disconnect yet";
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kConnectResponse, .qp = transition()});
  EXPECT_EQ(cm_notices().at(0).event.kind, EventKind::kConnectError);
  expect_message<ipc::Reject>();

  const ConnectionHandle child = report_connect_request(kFirstId);
  EXPECT_TRUE(is_done(process_.disconnect(child, kNow, {})));
  EXPECT_FALSE(process_.poll_message());
  EXPECT_TRUE(is_done(process_.reject(child, {}, {}))) << "the request is still unanswered";
}

TEST_F(ProcessTest, NotifyNeedsAnAcceptedConnection) {
  EXPECT_EQ(process_.notify(create_id()).error().code, Errc::kBadState);
  const ConnectionHandle child = report_connect_request(kFirstId);
  ASSERT_TRUE(process_.set_qp(child, create_qp(), kNow).has_value());
  EXPECT_EQ(process_.notify(child).error().code, Errc::kBadState);
  ASSERT_TRUE(is_done(process_.accept(child, {}, kNow, {})));
  drop_messages();
  EXPECT_TRUE(process_.notify(child).has_value());
  expect_message<ipc::Notify>();
}

TEST_F(ProcessTest, TheRnrTimerFitsTheRetriesThatAcceptAsksFor) {
  create_id();
  const ConnectionHandle child = report_connect_request(kFirstId);
  const hca::QpHandle qp = create_qp();
  ASSERT_TRUE(process_.set_qp(child, qp, kNow).has_value());
  EXPECT_TRUE(is_done(process_.accept(child, {.rnr_retry_count = 2}, kNow, {})));
  const auto attributes = process_.engine().query_qp(qp).value().attributes;
  EXPECT_EQ(attributes.min_rnr_timer, rdmacm::min_rnr_timer(2));
  EXPECT_EQ(attributes.rnr_retry, transition().rnr_retry_count);
}

TEST_F(ProcessTest, WrongCallsFailAtOnce) {
  const ConnectionHandle id = create_id();
  const auto resolve = [&] {
    return process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {});
  };
  EXPECT_EQ(error_of(process_.resolve_route(id, std::chrono::seconds(1), {})), Errc::kBadState);
  EXPECT_EQ(error_of(process_.connect(id, {}, {})), Errc::kBadState);
  for (const std::uint32_t space : {rdmacm::kPortSpaceUdp, rdmacm::kPortSpaceNone}) {
    EXPECT_EQ(error_of(process_.connect(create_id(space), {}, {})), Errc::kBadState);
  }
  EXPECT_EQ(error_of(process_.disconnect(id, kNow, {})), Errc::kBadState);
  EXPECT_EQ(error_of(process_.reject(id, {}, {})), Errc::kBadState);
  EXPECT_TRUE(is_done(resolve()));
  EXPECT_EQ(error_of(resolve()), Errc::kBadState);
  deliver(kFirstId, EventKind::kAddrResolved);
  EXPECT_TRUE(is_done(process_.resolve_route(id, std::chrono::seconds(1), {})));
  EXPECT_EQ(error_of(process_.resolve_route(id, std::chrono::seconds(1), {})), Errc::kBadState);
  EXPECT_EQ(error_of(process_.connect(id, {.qpn = 0x999999}, {})), Errc::kInvalidArgument);
  drop_messages();
  ASSERT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
  rdmacm::ConnParam too_much{};
  too_much.private_data_bytes = rdmacm::kConnectPrivateBytes + 1;
  EXPECT_EQ(error_of(process_.connect(id, too_much, {})), Errc::kInvalidArgument);
  EXPECT_TRUE(is_done(process_.connect(id, {}, {})));
  EXPECT_EQ(error_of(process_.connect(id, {}, {})), Errc::kBadState);
}

TEST_F(ProcessTest, ALaterRefusalRaisesTheEventOfTheStep) {
  const auto refuse = [&](ipc::Type request, rdmacm::IdHandle id) {
    deliver(ipc::encode(
        0,
        ipc::Refused{
            .request = request, .id = id, .code = Errc::kNoResources, .text = "the host is full"}));
    return cm_notices();
  };
  const auto expect_failed = [&](const std::vector<CmNotice>& notices, EventKind kind) {
    ASSERT_THAT(notices, SizeIs(1));
    EXPECT_EQ(notices[0].event.kind, kind);
    EXPECT_EQ(notices[0].event.status, -ENOMEM);
    EXPECT_EQ(notices[0].why, "the host is full");
  };
  const ConnectionHandle id = create_id();
  const auto resolve = [&] {
    return process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {});
  };
  EXPECT_TRUE(is_done(resolve()));
  expect_failed(refuse(ipc::Type::kResolveAddress, kFirstId), EventKind::kAddrError);
  EXPECT_TRUE(is_done(resolve())) << "the program may resolve the address again";
  deliver(kFirstId, EventKind::kAddrResolved);
  EXPECT_TRUE(is_done(process_.resolve_route(id, std::chrono::seconds(1), {})));
  (void)cm_notices();
  EXPECT_THAT(refuse(ipc::Type::kResolveAddress, kFirstId), IsEmpty())
      << "the address is resolved already";
  drop_messages();
  const hca::QpHandle qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  EXPECT_TRUE(is_done(process_.connect(id, {}, {})));
  expect_failed(refuse(ipc::Type::kConnect, kFirstId), EventKind::kConnectError);
  EXPECT_EQ(state(qp), QpState::kInit);
  EXPECT_EQ(error_of(process_.disconnect(id, kNow, {})), Errc::kBadState);
  const hca::QpHandle other_qp = drop_messages_and_create_qp();
  ASSERT_TRUE(process_.set_qp(id, other_qp, kNow).has_value());
  EXPECT_TRUE(is_done(process_.connect(id, {}, {}))) << "the program may connect again";

  const ConnectionHandle child = report_connect_request(kFirstId);
  const hca::QpHandle child_qp = drop_messages_and_create_qp();
  ASSERT_TRUE(process_.set_qp(child, child_qp, kNow).has_value());
  EXPECT_TRUE(is_done(process_.accept(child, {}, kNow, {})));
  expect_failed(refuse(ipc::Type::kAccept, kChildId), EventKind::kConnectError);
  EXPECT_EQ(state(child_qp), QpState::kError);
}

TEST_F(ProcessTest, ARetryCreatesAnIdThatTheAgentRefused) {
  const ConnectionHandle id = create_id();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
    EXPECT_EQ(expect_message<ipc::CreateId>().message.id, kFirstId);
    (void)expect_message<ipc::ResolveAddress>();
    for (const ipc::Type request : {ipc::Type::kCreateId, ipc::Type::kResolveAddress}) {
      deliver(ipc::encode(
          0, ipc::Refused{.request = request, .id = kFirstId, .code = Errc::kNoResources}));
    }
    EXPECT_THAT(cm_notices(), SizeIs(1));
  }
  EXPECT_TRUE(process_.destroy_id(id).has_value());
  EXPECT_EQ(expect_message<ipc::DestroyId>().message.id, kFirstId)
      << "the agent remembers why it refused to create the id";
}

// Some parameters are only for ids without a port space.  The agent refuses them for other ids, and
// the program gets the error from its call.
TEST_F(ProcessTest, ParametersOfOtherPortSpacesAreRefusedByTheAgent) {
  const ConnectionHandle id = create_resolved_id();
  ASSERT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
  rdmacm::ConnParam param{};
  param.peer_to_peer = true;
  std::optional<Errc> code;
  keep_pending(process_.connect(id, param, [&](auto done) { code = done.error().code; }));
  answer<ipc::Connect>(ipc::Done{.failed = true, .code = Errc::kNotSupported});
  EXPECT_EQ(code, Errc::kNotSupported);
  EXPECT_TRUE(is_done(process_.connect(id, {}, {})));
}

// A reply that comes after the program's next step does not move the id back.
TEST_F(ProcessTest, ALateReplyDoesNotMoveAnIdBack) {
  const ConnectionHandle id = create_id();
  keep_pending(process_.bind(id, {.ip = kLocalGid, .family = 4}, [](const auto&) {}));
  const auto bind = expect_message<ipc::Bind>().request;
  EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
  deliver(ipc::encode(bind, ipc::Bound{.source = {.ip = kLocalGid, .family = 4}}));
  deliver(ipc::encode(0, ipc::Refused{.request = ipc::Type::kResolveAddress,
                                      .id = kFirstId,
                                      .code = Errc::kInvalidArgument}));
  EXPECT_THAT(cm_notices(), SizeIs(1));
}

TEST_F(ProcessTest, MessagesForAStuckAgentAreLimited) {
  const ConnectionHandle child = (create_id(), report_connect_request(kFirstId));
  for (std::size_t i = 0; i < Process::kUnreadMax; ++i) {
    keep_pending(process_.set_option(child, 0, 0, 0, [](const auto&) {}));
  }
  EXPECT_EQ(error_of(process_.reject(child, {}, {})), Errc::kNoResources);
  EXPECT_TRUE(process_.destroy_id(child).has_value());
  drop_messages();
  const ConnectionHandle other = report_connect_request(kFirstId);
  EXPECT_TRUE(is_done(process_.reject(other, {}, {})));
}

// The peer rejects while the program accepts: the program gets one event, not two.
TEST_F(ProcessTest, ARefusalAfterTheEndRaisesNoSecondEvent) {
  create_id();
  const ConnectionHandle child = report_connect_request(kFirstId);
  ASSERT_TRUE(process_.set_qp(child, create_qp(), kNow).has_value());
  EXPECT_TRUE(is_done(process_.accept(child, {}, kNow, {})));
  deliver(kChildId, EventKind::kRejected);
  deliver(ipc::encode(
      0, ipc::Refused{.request = ipc::Type::kAccept, .id = kChildId, .code = Errc::kBadState}));
  EXPECT_THAT(cm_notices(), SizeIs(1));
}

// Events of an id that the program has not accepted are marked, because the program does not know
// the id.
TEST_F(ProcessTest, EventsOfAnUnacceptedIdAreMarked) {
  create_id();
  const ConnectionHandle child = report_connect_request(kFirstId);
  deliver(kChildId, EventKind::kRejected);
  deliver(kChildId, EventKind::kTimewaitExit);
  EXPECT_THAT(cm_notices(), Each(Field(&CmNotice::unanswered, true)));
  EXPECT_EQ(error_of(process_.accept(child, {}, kNow, {})), Errc::kBadState);
  EXPECT_TRUE(process_.destroy_id(child).has_value());
  const ConnectionHandle other = report_connect_request(kFirstId);
  ASSERT_TRUE(process_.set_qp(other, drop_messages_and_create_qp(), kNow).has_value());
  EXPECT_TRUE(is_done(process_.accept(other, {}, kNow, {})));
  deliver(kChildId, EventKind::kRejected);
  EXPECT_THAT(cm_notices(), ElementsAre(Field(&CmNotice::unanswered, false)));
}

}  // namespace
}  // namespace verbena::process
