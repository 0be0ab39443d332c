#include "ipc/counters.h"
#include "process/fixture_test.h"

namespace verbena::process {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ProcessTest, OnlyTheFirstQpLeasesARange) {
  std::uint32_t last_qpn = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto qp = create_qp();
    const auto qpn = process_.engine().query_qp(qp).value().qpn.value;
    ASSERT_EQ(qpn >> 12, kRange);
    ASSERT_NE(qpn, last_qpn);  // a number is not used again at once
    last_qpn = qpn;
    ASSERT_TRUE(process_.destroy_qp(qp, kNow).has_value());
  }
  EXPECT_FALSE(process_.poll_message());
}

// A number that a peer has known is quarantined, so a new QP leases another range.  If the agent
// refuses the lease, the QP takes a quarantined number at once.
TEST_F(ProcessTest, ManyShortConnectionsLeaseMoreRanges) {
  const ConnectionHandle id = create_id(rdmacm::kPortSpaceNone);
  keep_pending(
      process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, [](const auto&) {}));
  answer<ipc::ResolveAddress>(ipc::Done{});
  deliver(kFirstId, EventKind::kAddrResolved);
  ASSERT_TRUE(is_done(process_.resolve_route(id, std::chrono::seconds(1), {})));
  const auto use_one_number = [&] {
    const auto qp = create_qp();
    ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
    keep_pending(process_.connect(id, {}, [](const auto&) {}));
    (void)expect_message<ipc::Connect>();
    ASSERT_TRUE(process_.destroy_qp(qp, kNow).has_value());
  };
  for (std::uint32_t i = 0; i < ipc::kLeaseQpns; ++i) use_one_number();
  EXPECT_FALSE(process_.poll_message());
  std::optional<hca::QpHandle> new_qp;
  keep_pending(process_.create_qp(init_, kNow, [&](auto qp) { new_qp = qp.value(); }));
  EXPECT_FALSE(new_qp.has_value());
  answer<ipc::Lease>(ipc::Done{.failed = true, .code = Errc::kNoResources});
  ASSERT_TRUE(new_qp.has_value());
  EXPECT_TRUE(process_.destroy_qp(*new_qp, kNow).has_value());
  const auto qp_after_quarantine = process_.create_qp(init_, kNow + QpNumbers::kQuarantine, {});
  EXPECT_TRUE(std::get<Result<hca::QpHandle>>(qp_after_quarantine).has_value());
}

TEST_F(ProcessTest, AQpWithARemotePeerExpectsPacketsFromOtherHosts) {
  const auto connect_to = [&](const Gid& peer) {
    const auto qp = create_qp();
    hca::QpAttributes a{.state = QpState::kInit};
    a.path.address = {.source = kLocalGid, .destination = peer, .source_port = 0xc123};
    a.destination_qpn = Qpn{0x456789};
    using namespace hca::attribute;
    const std::uint32_t to_init = kState | kPkeyIndex | kPort | kAccessFlags;
    ASSERT_TRUE(process_.modify_qp(qp, a, to_init, kNow).has_value());
    a.state = QpState::kRtr;
    const std::uint32_t to_rtr =
        kState | kPath | kPathMtu | kDestinationQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer;
    ASSERT_TRUE(process_.modify_qp(qp, a, to_rtr, kNow).has_value());
  };
  connect_to(kLocalGid);
  EXPECT_FALSE(process_.may_hear_other_hosts());
  connect_to(kRemoteGid);
  EXPECT_TRUE(process_.may_hear_other_hosts());
  connect_to(kLocalGid);
  EXPECT_TRUE(process_.may_hear_other_hosts());
}

TEST_F(ProcessTest, APathBetweenAddressFamiliesIsRefusedWithAHint) {
  Gid ipv6{}, link_local{};
  ipv6.bytes[0] = std::byte{0x20};
  link_local.bytes[0] = std::byte{0xfe};
  link_local.bytes[1] = std::byte{0x80};
  ipc::Port two_families = port();
  two_families.gids.push_back({.gid = ipv6, .interface = 2, .index = 1});
  two_families.gids.push_back({.gid = link_local, .interface = 2, .index = 2});
  report_port(two_families);
  const auto path = [&](std::uint32_t index, const Gid& to) {
    return process_.path(index, {.destination = to, .has_grh = true});
  };
  EXPECT_TRUE(path(0, kRemoteGid).has_value());
  for (const std::uint32_t index : {1u, 2u}) {
    EXPECT_TRUE(path(index, ipv6).has_value());
    EXPECT_TRUE(path(index, link_local).has_value());
    const auto refused = path(index, kRemoteGid);
    ASSERT_FALSE(refused.has_value()) << index;
    EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(refused.error().context, ::testing::HasSubstr("another GID index is needed"));
  }
  for (const Gid& to : {ipv6, link_local}) {
    const auto refused = path(0, to);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(refused.error().context, ::testing::HasSubstr("IPv4 address"));
  }
  Gid group{};
  group.bytes[0] = std::byte{0xff};
  EXPECT_TRUE(path(0, group).has_value()) << "the family of a group is not checked";
}

TEST_F(ProcessTest, AUdQpExpectsPacketsFromOtherHostsFromRtrOn) {
  using namespace hca::attribute;
  init_.type = hca::QpType::kUd;
  const auto qp = create_qp();
  const std::uint32_t to_init = kState | kPkeyIndex | kPort | kQkey;
  ASSERT_TRUE(process_.modify_qp(qp, {.state = QpState::kInit}, to_init, kNow).has_value());
  EXPECT_FALSE(process_.may_hear_other_hosts()) << "a QP receives nothing before RTR";
  ASSERT_TRUE(process_.modify_qp(qp, {.state = QpState::kRtr}, kState, kNow).has_value());
  EXPECT_TRUE(process_.may_hear_other_hosts());
}

TEST_F(ProcessTest, TheUdQpOfAnIdExpectsPacketsFromOtherHosts) {
  const ConnectionHandle id = create_id(rdmacm::kPortSpaceUdp);
  init_.type = hca::QpType::kUd;
  const auto qp = create_qp();
  EXPECT_FALSE(process_.may_hear_other_hosts());
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  EXPECT_TRUE(process_.may_hear_other_hosts());
}

TEST_F(ProcessTest, ADatagramIdUsesTheQKeyOfItsPortSpace) {
  const auto init = [&](std::uint32_t port_space) {
    return process_.transition(create_id(port_space), QpState::kInit).value();
  };
  EXPECT_EQ(init(rdmacm::kPortSpaceUdp).attributes.qkey.value, rdmacm::kDatagramQkey);
  EXPECT_TRUE((init(rdmacm::kPortSpaceUdp).mask & hca::attribute::kQkey) != 0);
  EXPECT_FALSE((init(rdmacm::kPortSpaceTcp).mask & hca::attribute::kQkey) != 0);
}

TEST_F(ProcessTest, TheNextQpUsesARangeLeasedForADroppedRequest) {
  {
    const auto dropped =
        process_.create_qp(init_, kNow, [](auto) { FAIL() << "the request was dropped"; });
    ASSERT_TRUE(std::holds_alternative<Pending>(dropped));
  }
  answer<ipc::Lease>(ipc::Leased{kRange});
  EXPECT_THAT(process_.ranges(), ::testing::ElementsAre(kRange));
  create_qp();
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(ProcessTest, TheFirstRequestForAnIdCreatesTheIdInTheAgent) {
  ASSERT_TRUE(process_.destroy_id(create_id()).has_value());
  EXPECT_FALSE(process_.poll_message());
  EXPECT_EQ(process_.create_id(0x999, 2, 0).error().code, Errc::kNotSupported);

  const ConnectionHandle id = create_id();
  EXPECT_FALSE(process_.poll_message());
  keep_pending(process_.listen(id, 1, [](const auto&) {}));
  const auto [number, made] = expect_message<ipc::CreateId>();
  EXPECT_EQ(number, 0u) << "the message expects no reply";
  EXPECT_TRUE(ipc::is_name(made.id));
  EXPECT_EQ(ipc::index_of_name(made.id), ipc::index_of_name(kFirstId)) << "the index is free again";
  EXPECT_NE(made.id, kFirstId);
  EXPECT_EQ(made.port_space, rdmacm::kPortSpaceTcp);
  const auto listen = expect_message<ipc::Listen>();
  EXPECT_NE(listen.request, 0u);
  EXPECT_EQ(listen.message.id, made.id);
  deliver(kFirstId, EventKind::kAddrResolved);  // this event is for the destroyed id
  EXPECT_THAT(cm_notices(), IsEmpty());
  ASSERT_TRUE(process_.destroy_id(id).has_value());
  EXPECT_EQ(expect_message<ipc::DestroyId>().message.id, made.id);
}

TEST_F(ProcessTest, AListenerKnowsTheAddressThatTheAgentChose) {
  const ConnectionHandle id = create_id();
  keep_pending(process_.listen(id, 1, [](const auto&) {}));
  answer<ipc::Listen>(ipc::Bound{.source = {.ip = kLocalGid, .port = 40'000, .family = 4},
                                 .on_device = true,
                                 .path = {.sgid_index = 3}});
  const Connection& connection = *process_.connection(id).value();
  EXPECT_EQ(connection.source.port, 40'000);
  EXPECT_EQ(connection.source.family, 4);
  EXPECT_TRUE(connection.bound);
  EXPECT_EQ(connection.path.sgid_index, 3u);
}

TEST_F(ProcessTest, TheTextOfARefusalIsStored) {
  Error error{};
  const ConnectionHandle id = create_id();
  keep_pending(process_.listen(id, 1, [&](auto done) { error = done.error(); }));
  answer<ipc::Listen>(
      ipc::Done{.failed = true, .code = Errc::kAddressInUse, .text = "port 7471 is taken"});
  EXPECT_EQ(error.code, Errc::kAddressInUse);
  EXPECT_EQ(process_.last_refusal_text(), "port 7471 is taken");
}

TEST_F(ProcessTest, StaleHandlesAreRefused) {
  const ConnectionHandle id = create_id();
  ASSERT_TRUE(process_.destroy_id(id).has_value());
  const auto is_refused = [](const auto& started) {
    const auto* result = std::get_if<0>(&started);
    return result != nullptr && !*result && result->error().code == Errc::kBadHandle;
  };
  const auto never = [](const auto&) { FAIL(); };
  EXPECT_EQ(process_.destroy_id(id).error().code, Errc::kBadHandle);
  EXPECT_EQ(process_.set_qp(id, {}, kNow).error().code, Errc::kBadHandle);
  EXPECT_EQ(process_.set_cookie(id, 1).error().code, Errc::kBadHandle);
  EXPECT_EQ(process_.connection(id).error().code, Errc::kBadHandle);
  EXPECT_EQ(process_.transition(id, QpState::kInit).error().code, Errc::kBadHandle);
  EXPECT_TRUE(is_refused(process_.bind(id, {}, never)));
  EXPECT_TRUE(is_refused(process_.resolve_address(id, {}, {}, {}, never)));
  EXPECT_TRUE(is_refused(process_.resolve_route(id, std::chrono::seconds(1), {})));
  EXPECT_TRUE(is_refused(process_.listen(id, 1, never)));
  EXPECT_TRUE(is_refused(process_.connect(id, {}, never)));
  EXPECT_TRUE(is_refused(process_.accept(id, {}, kNow, never)));
  EXPECT_TRUE(is_refused(process_.reject(id, {}, never)));
  EXPECT_TRUE(is_refused(process_.establish(id, {}, kNow, never)));
  EXPECT_TRUE(is_refused(process_.disconnect(id, kNow, never)));
  EXPECT_TRUE(is_refused(process_.load_path(id, {}, {}, never)));
  EXPECT_TRUE(is_refused(process_.answer_path(id, {}, kNow, never)));
  EXPECT_EQ(process_.notify(id).error().code, Errc::kBadHandle);
  EXPECT_TRUE(is_refused(process_.set_option(id, 0, 0, 0, never)));
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(ProcessTest, AResponseMovesTheQpToRtsAndEstablishesTheConnection) {
  const ConnectionHandle id = create_id();
  const hca::QpHandle qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  EXPECT_EQ(state(qp), QpState::kInit);
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kConnectResponse, .qp = transition()});
  EXPECT_EQ(state(qp), QpState::kRts);
  // Each side sends from the PSN that the other one expects (vol1 12.7.31).
  const auto moved = process_.engine().query_qp(qp).value().attributes;
  EXPECT_EQ(moved.sq_psn, Psn{transition().sq_psn});
  EXPECT_EQ(moved.rq_psn, Psn{transition().rq_psn});
  EXPECT_TRUE(process_.may_hear_other_hosts());
  EXPECT_EQ(expect_message<ipc::Establish>().message.id, kFirstId);
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].event.kind, EventKind::kEstablished);
  EXPECT_EQ(notices[0].cookie, 77u);
}

// The peer rejects before it gets the RTU.  The program has seen ESTABLISHED, so it must see a
// disconnection.
TEST_F(ProcessTest, ARejectAfterEstablishmentIsADisconnection) {
  const ConnectionHandle id = create_id();
  const hca::QpHandle qp = create_qp();
  ASSERT_TRUE(process_.set_qp(id, qp, kNow).has_value());
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kConnectResponse, .qp = transition()});
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kRejected, .status = 28});
  const auto notices = cm_notices();
  ASSERT_THAT(notices, SizeIs(2));
  EXPECT_EQ(notices[0].event.kind, EventKind::kEstablished);
  EXPECT_EQ(notices[1].event.kind, EventKind::kDisconnected);
  EXPECT_EQ(notices[1].event.status, -ECONNRESET);
  EXPECT_EQ(state(qp), QpState::kRts);  // the QP works until the program disconnects
}

// The agent reports an invalid MTU.  So the peer is rejected and the program gets an error.
TEST_F(ProcessTest, AResponseWithInvalidValuesIsRejected) {
  const ConnectionHandle id = create_id();
  ASSERT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
  auto invalid = transition();
  invalid.path_mtu = 9;
  deliver(rdmacm::Event{.id = kFirstId, .kind = EventKind::kConnectResponse, .qp = invalid});
  EXPECT_EQ(expect_message<ipc::Reject>().message.id, kFirstId);
  EXPECT_EQ(cm_notices().at(0).event.kind, EventKind::kConnectError);
}

TEST_F(ProcessTest, AcceptMovesTheQpToRtsBeforeTheRepIsSent) {
  create_id();
  const ConnectionHandle child = report_connect_request(kFirstId);
  const hca::QpHandle qp = create_qp();
  ASSERT_TRUE(process_.set_qp(child, qp, kNow).has_value());
  keep_pending(process_.accept(child, {.responder_resources = 0xff, .initiator_depth = 2}, kNow,
                               [](const auto&) {}));
  EXPECT_EQ(state(qp), QpState::kRts);
  const auto accept = expect_message<ipc::Accept>().message;
  EXPECT_EQ(accept.id, kChildId);
  EXPECT_EQ(accept.param.psn, transition().rq_psn);
  EXPECT_EQ(accept.param.responder_resources, 4);  // the limit that the peer offers
  EXPECT_EQ(accept.param.initiator_depth, 2);      // the program's own limit
}

TEST_F(ProcessTest, DestroyingAListenerDestroysUnseenRequests) {
  const ConnectionHandle listener = create_id();
  keep_pending(process_.listen(listener, 1, [](const auto&) {}));
  answer<ipc::Listen>(ipc::Bound{});
  deliver(rdmacm::Event{.id = kChildId, .listen_id = kFirstId, .kind = EventKind::kConnectRequest});
  ASSERT_TRUE(process_.destroy_id(listener).has_value());
  EXPECT_EQ(expect_message<ipc::DestroyId>().message.id, kFirstId);
  EXPECT_EQ(expect_message<ipc::DestroyId>().message.id, kChildId);
  EXPECT_THAT(cm_notices(), IsEmpty());
}

TEST_F(ProcessTest, ARequestForADestroyedListenerIsRefused) {
  deliver(rdmacm::Event{.id = kChildId, .listen_id = kFirstId, .kind = EventKind::kConnectRequest});
  EXPECT_EQ(expect_message<ipc::DestroyId>().message.id, kChildId);
  deliver(kFirstId, EventKind::kEstablished);  // this event is for an id that does not exist
  EXPECT_THAT(cm_notices(), IsEmpty());
}

TEST_F(ProcessTest, ASecondQpOfAnIdReplacesTheFirstQp) {
  const ConnectionHandle id = create_id();
  const hca::QpHandle first = create_qp();
  const hca::QpHandle second = create_qp();
  ASSERT_TRUE(process_.set_qp(id, first, kNow).has_value());
  ASSERT_TRUE(process_.set_qp(id, second, kNow).has_value());
  ASSERT_TRUE(process_.destroy_qp(first, kNow).has_value());
  EXPECT_EQ(process_.connection(id).value()->qp, second);
}

// DAPL creates its QP on one id and accepts with it on another.
TEST_F(ProcessTest, GivingAQpToAnotherIdRemovesTheQpFromTheFirstId) {
  const ConnectionHandle first = create_id();
  const ConnectionHandle second = create_id();
  const hca::QpHandle qp = create_qp();
  ASSERT_TRUE(process_.set_qp(first, qp, kNow).has_value());
  ASSERT_TRUE(process_.set_qp(second, qp, kNow).has_value());
  EXPECT_FALSE(process_.connection(first).value()->qp);
  ASSERT_TRUE(process_.destroy_id(first).has_value());
  EXPECT_EQ(process_.connection(second).value()->qp, qp);
  ASSERT_TRUE(process_.destroy_qp(qp, kNow).has_value());
  EXPECT_FALSE(process_.connection(second).value()->qp);
}

TEST_F(ProcessTest, WithoutATableThereIsNoDeadline) {
  create_qp();
  EXPECT_EQ(process_.deadline(), kNever);
}

TEST_F(ProcessTest, TheTableShowsEachQp) {
  std::vector<std::uint64_t> memory(ipc::QpTable::kBytes / 8 + 1);
  process_.set_qp_table(std::as_writable_bytes(std::span(memory)));
  const hca::QpHandle qp = create_qp();
  process_.on_timer(kNow);
  const ipc::QpTable table(std::as_writable_bytes(std::span(memory)));
  EXPECT_EQ(table.count(), 1u);
  ASSERT_TRUE(table.read(0).has_value());
  EXPECT_EQ(table.read(0)->qpn >> 12, kRange);
  ASSERT_TRUE(process_.destroy_qp(qp, kNow).has_value());
  process_.on_timer(process_.deadline());
  EXPECT_EQ(table.count(), 0u);
  EXPECT_FALSE(table.read(0).has_value());
  EXPECT_EQ(process_.deadline(), kNever);
}

TEST_F(ProcessTest, TheTimerUpdatesTheTableAfterTheLastPacket) {
  std::vector<std::uint64_t> memory(ipc::QpTable::kBytes / 8 + 1);
  const auto bytes = std::as_writable_bytes(std::span(memory));
  process_.set_qp_table(bytes);
  const auto counter_in_table = [&](const std::string& name) {
    const auto all = ipc::QpTable(bytes).counters();
    const auto found = std::ranges::find(all, name, &ipc::NamedCount::name);
    return found == all.end() ? ~std::uint64_t{0} : found->value;
  };
  const std::vector<std::byte> stray_packet(16);
  process_.receive({link::Address{}, stray_packet}, kNow);
  EXPECT_EQ(counter_in_table("packets_in"), 1u);
  process_.receive({link::Address{}, stray_packet},
                   kNow);  // too soon for another update of the table
  EXPECT_EQ(counter_in_table("packets_in"), 1u);
  ASSERT_LT(process_.deadline(), kNever);
  process_.on_timer(process_.deadline());
  EXPECT_EQ(counter_in_table("packets_in"), 2u);
  EXPECT_EQ(process_.deadline(), kNever);
  process_.mark_status_outdated();  // the counters of the sockets have changed
  const Time before = process_.status_updated_at();
  ASSERT_LT(process_.deadline(), kNever);
  process_.on_timer(process_.deadline());
  EXPECT_GT(process_.status_updated_at(), before);
  EXPECT_EQ(process_.deadline(), kNever);
}

// Provides a program that sends datagrams to itself.  The first datagram goes by UDP, and makes
// the program attach a lane to itself.
class OwnLane : public ProcessTest {
 protected:
  void SetUp() override {
    ProcessTest::SetUp();
    process_.set_qp_table(std::as_writable_bytes(std::span(memory_)));
    process_.lanes().enable();
    init_.type = hca::QpType::kUd;
    qp_ = drop_messages_and_create_qp();
    using namespace hca::attribute;
    for (const auto& [state, mask] :
         {std::pair(QpState::kInit, kState | kPkeyIndex | kPort | kQkey),
          std::pair(QpState::kRtr, kState), std::pair(QpState::kRts, kState | kSqPsn)}) {
      process_.modify_qp(qp_, {.state = state}, mask, kNow).value();
    }
    ah_ = process_.engine()
              .create_ah(init_.pd, {.address = {.source = kLocalGid, .destination = kLocalGid}})
              .value();
  }
  // Sends a datagram.  Returns true if it left by UDP.
  bool send() {
    const Qpn self = process_.engine().query_qp(qp_).value().qpn;
    process_.engine().post_send(qp_, {.remote_qpn = self, .ah = ah_}).value();
    link::Burst burst;
    process_.transmit(burst, kNow);
    return !burst.empty();
  }

  std::vector<std::uint64_t> memory_ = std::vector<std::uint64_t>(ipc::QpTable::kBytes / 8 + 1);
  hca::QpHandle qp_{};
  hca::AhHandle ah_{};
};

TEST_F(OwnLane, TheTableIsUpdatedAfterPacketsThatLeaveByLanesOnly) {
  ASSERT_TRUE(send());
  process_.update_status_now(kNow);
  ASSERT_EQ(process_.deadline(), kNever);
  ASSERT_FALSE(send());
  EXPECT_LT(process_.deadline(), kNever);
}

TEST_F(OwnLane, ANewLaneWakesTheProgressThreadThatMayBeAsleep) {
  ASSERT_TRUE(send());
  const auto lane = process_.lanes().poll_wake();
  ASSERT_TRUE(lane.has_value());
  EXPECT_TRUE(LaneManager::is_own(*lane));
}

TEST_F(ProcessTest, IdsThatTheLimitRefusesAreCounted) {
  Process::Config config{.build = "test"};
  config.ids_max = 1;
  Process limited_process(config, Random(1));
  std::vector<std::uint64_t> memory(ipc::QpTable::kBytes / 8 + 1);
  const auto bytes = std::as_writable_bytes(std::span(memory));
  limited_process.set_qp_table(bytes);
  const auto next_request_number = [&] {
    return ipc::open(limited_process.poll_message().value().message).value().request;
  };
  const auto deliver = [&](const ipc::Bytes& message) {
    ASSERT_TRUE(limited_process.on_message(message, kNow).has_value());
  };
  auto hello = limited_process.hello([](auto) {});
  deliver(ipc::encode(next_request_number(), ipc::Welcome{.devices = {device()}}));
  EXPECT_TRUE(limited_process.create_id(rdmacm::kPortSpaceTcp, 2, 0).has_value());
  EXPECT_EQ(limited_process.create_id(rdmacm::kPortSpaceTcp, 2, 0).error().code,
            Errc::kNoResources);
  limited_process.on_timer(kNow);
  const auto counters = ipc::QpTable(bytes).counters();
  const auto counter = std::ranges::find(counters, "limit_ids", &ipc::NamedCount::name);
  ASSERT_NE(counter, counters.end());
  EXPECT_EQ(counter->value, 1u);
}

// ---- the agent dies -----------------------------------------------------------------------------

TEST_F(ProcessTest, WhenTheAgentDiesRequestsFailAndQpsAreFlushed) {
  const ConnectionHandle id = create_id();
  const hca::QpHandle id_qp = create_qp();
  const hca::QpHandle qp_without_id = create_qp();
  ASSERT_TRUE(process_.set_qp(id, id_qp, kNow).has_value());
  using namespace hca::attribute;
  ASSERT_TRUE(process_
                  .modify_qp(qp_without_id, {.state = QpState::kInit},
                             kState | kPkeyIndex | kPort | kAccessFlags, kNow)
                  .has_value());
  for (const auto qp : {id_qp, qp_without_id}) {
    ASSERT_TRUE(process_.engine().post_recv(qp, {.wr_id = 9}).has_value());
  }
  std::vector<Errc> codes;
  keep_pending(process_.listen(id, 1, [&](auto done) { codes.push_back(done.error().code); }));
  keep_pending(
      process_.set_option(id, 0, 0, 0, [&](auto done) { codes.push_back(done.error().code); }));
  process_.on_agent_died(kNow);
  process_.on_agent_died(kNow);  // a second call does nothing
  EXPECT_THAT(codes, ::testing::ElementsAre(Errc::kDeviceFatal, Errc::kDeviceFatal));
  EXPECT_EQ(state(id_qp), QpState::kError);
  EXPECT_EQ(state(qp_without_id), QpState::kError);
  std::vector<hca::WorkCompletion> done(4);
  EXPECT_EQ(process_.engine().poll_cq(init_.recv_cq, done).value(), 2u);
  EXPECT_EQ(done[0].status, hca::WcStatus::kFlushed);

  int fatal_events = 0;
  int removal_events = 0;
  while (const auto notice = process_.poll_notice()) {
    const auto* async = std::get_if<AsyncNotice>(&*notice);
    const auto* cm = std::get_if<CmNotice>(&*notice);
    if (async != nullptr && async->type == 8) ++fatal_events;
    if (cm != nullptr && cm->event.kind == EventKind::kDeviceRemoval) ++removal_events;
  }
  EXPECT_EQ(fatal_events, 1);
  EXPECT_EQ(removal_events, 1);
}

TEST_F(ProcessTest, WithoutAnAgentEveryRequestFailsAtOnce) {
  create_id();
  const ConnectionHandle child = report_connect_request(kFirstId);
  ASSERT_TRUE(process_.set_qp(child, create_qp(), kNow).has_value());
  process_.on_agent_died(kNow);
  const auto is_fatal = [](const auto& started) {
    const auto* result = std::get_if<0>(&started);
    return result != nullptr && !*result && result->error().code == Errc::kDeviceFatal;
  };
  const auto never = [](const auto&) { FAIL(); };
  EXPECT_EQ(process_.create_id(0x106, 2, 0).error().code, Errc::kDeviceFatal);
  EXPECT_TRUE(is_fatal(process_.create_qp(init_, kNow, never)));
  EXPECT_TRUE(is_fatal(process_.bind(child, {}, never)));
  EXPECT_TRUE(is_fatal(process_.listen(child, 1, never)));
  EXPECT_TRUE(is_fatal(process_.connect(child, {}, never)));
  EXPECT_TRUE(is_fatal(process_.disconnect(child, kNow, never)));
  EXPECT_EQ(process_.notify(child).error().code, Errc::kDeviceFatal);
  EXPECT_TRUE(is_fatal(process_.flush_capture(never)));
  EXPECT_TRUE(is_fatal(process_.accept(child, {}, kNow, never)));
  EXPECT_TRUE(process_.destroy_id(child).has_value());
  EXPECT_FALSE(process_.poll_message());
}

TEST_F(ProcessTest, ACompletionMayDropAnotherRequestWhenTheAgentDies) {
  const ConnectionHandle id = create_id();
  std::optional<Pending> second;
  bool completed = false;
  auto first = process_.listen(id, 1, [&](auto) { second.reset(); });
  second = std::get<Pending>(process_.set_option(id, 0, 0, 0, [&](auto) { completed = true; }));
  process_.on_agent_died(kNow);
  EXPECT_FALSE(completed);
}

// ---- random messages ----------------------------------------------------------------------------

TEST_F(ProcessTest, RandomMessagesDoNoHarm) {
  Random random(4);
  const ConnectionHandle id = create_id();
  ASSERT_TRUE(process_.set_qp(id, create_qp(), kNow).has_value());
  const std::vector<ipc::Bytes> valid_messages = {
      ipc::encode(0, ipc::CmEvent{{.id = kFirstId,
                                   .listen_id = kFirstId,
                                   .kind = EventKind::kConnectRequest,
                                   .qp = transition()}}),
      ipc::encode(
          0,
          ipc::CmEvent{{.id = kFirstId, .kind = EventKind::kConnectResponse, .qp = transition()}}),
      ipc::encode(0, ipc::CmEvent{{.id = kChildId, .kind = EventKind::kDisconnected}}),
      ipc::encode(0, ipc::CmEvent{{.id = kFirstId, .kind = EventKind::kPathAnswered}}),
      ipc::encode(0, ipc::DevicesChanged{{device()}}),
      ipc::encode(9, ipc::Welcome{.devices = {device()}}),
      ipc::encode(9, ipc::Done{.failed = true, .text = "no"}),
      ipc::encode(0, ipc::Refused{.request = ipc::Type::kConnect, .id = kFirstId, .text = "no"}),
      ipc::encode(9, ipc::Leased{kRange}),
      ipc::encode(9, ipc::Bound{}),
  };
  for (int i = 0; i < 20'000; ++i) {
    ipc::Bytes bytes = valid_messages[random.below(valid_messages.size())];
    if (random.chance({1, 8})) {
      bytes.resize(random.below(400));
      for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
    }
    const auto wrong_bytes = bytes.empty() ? 0 : random.below(4);
    for (std::uint64_t n = 0; n < wrong_bytes; ++n) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    }
    (void)process_.on_message(bytes, kNow).has_value();
    if (i % 16 == 0) keep_pending(process_.listen(id, 1, [](const auto&) {}));
    if (i % 64 == 0) (void)process_.create_id(0x106, 2, 0).has_value();
    while (process_.poll_message()) {
    }
    while (const auto notice = process_.poll_notice()) {
      const auto* cm = std::get_if<CmNotice>(&*notice);
      if (cm == nullptr || !cm->new_id) continue;
      keep_pending(process_.accept(cm->new_id, {}, kNow, [](const auto&) {}));
      if (random.chance({3, 4})) (void)process_.destroy_id(cm->new_id).has_value();
    }
  }
  process_.on_agent_died(kNow);
}

}  // namespace
}  // namespace verbena::process
