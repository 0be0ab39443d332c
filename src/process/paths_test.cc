#include <array>
#include <cerrno>

#include "process/fixture_test.h"
#include "wire/headers.h"

// Tests ids without a port space: the program calls establish(), and alternate paths are loaded
// into the QP.

namespace verbena::process {
namespace {

const Gid kAlternateLocalGid = wire::ipv4_gid(0x0a010001);
const Gid kAlternateRemoteGid = wire::ipv4_gid(0x0a010002);
constexpr Qpn kPeer{0x456789};

class Paths : public ProcessTest {
 protected:
  Paths() {
    local_port_ = port();
    local_port_.gids.push_back({.gid = kAlternateLocalGid, .interface = 3, .index = 1});
  }
  void SetUp() override {
    ProcessTest::SetUp();
    report_port(local_port_);
    id_ = create_id(rdmacm::kPortSpaceNone);
    qp_ = create_qp();
    ASSERT_TRUE(process_.set_qp(id_, qp_, kNow).has_value());
    qpn_ = process_.engine().query_qp(qp_).value().qpn;
    (void)cm_notices();
  }
  hca::QpAttributes attributes() { return process_.engine().query_qp(qp_).value().attributes; }
  // Makes an event for the id.  The event has an alternate path.
  static rdmacm::Event event(EventKind kind) {
    rdmacm::Event made{.id = kFirstId, .kind = kind, .port_space = 0, .qp_type = 2};
    made.param.alternate = {
        .address = {.source = kAlternateLocalGid, .destination = kAlternateRemoteGid}};
    made.qp = transition();
    made.pending_disconnect = {.address = {.source = kLocalGid, .destination = kRemoteGid},
                               .local_comm_id = {1},
                               .remote_comm_id = {2},
                               .local_qpn = {1},
                               .remote_qpn = kPeer};
    return made;
  }
  static Errc code_of(const Started<ipc::Done>& refused) {
    return std::get<Result<ipc::Done>>(refused).error().code;
  }
  void deliver_response(bool accepted) {
    rdmacm::Event response = event(EventKind::kConnectResponse);
    response.param.alternate_accepted = accepted;
    deliver(response);
  }
  void establish() {
    keep_pending(process_.establish(id_, {}, kNow, [](auto) {}));
    (void)expect_message<ipc::Establish>();
  }
  void expect_alternate_path(bool loaded) {
    EXPECT_EQ(attributes().alternate_path.address.destination,
              loaded ? kAlternateRemoteGid : Gid{});
    EXPECT_EQ(attributes().migration,
              loaded ? hca::MigrationState::kRearm : hca::MigrationState::kMigrated);
  }
  // Migrates the QP to the alternate path.
  void migrate() {
    ASSERT_TRUE(process_
                    .modify_qp(qp_, {.migration = hca::MigrationState::kMigrated},
                               hca::attribute::kMigrationState, kNow)
                    .has_value());
  }

  ipc::Port local_port_;
  ConnectionHandle id_{};
  hca::QpHandle qp_{};
  Qpn qpn_{};
};

TEST_F(Paths, TheQpMovesToRtsWhenTheProgramEstablishes) {
  deliver_response(false);
  ASSERT_EQ(cm_notices().at(0).event.kind, EventKind::kConnectResponse);
  EXPECT_FALSE(process_.poll_message());
  EXPECT_EQ(state(qp_), QpState::kInit);
  const std::vector<std::byte> rtu_data{std::byte{42}};
  keep_pending(process_.establish(id_, rtu_data, kNow, [](auto) {}));
  EXPECT_EQ(expect_message<ipc::Establish>().message.private_data, rtu_data);
  EXPECT_EQ(state(qp_), QpState::kRts);
  expect_alternate_path(false);
}

TEST_F(Paths, APathAcceptedInTheRepIsLoaded) {
  deliver_response(true);
  establish();
  expect_alternate_path(true);
  EXPECT_EQ(attributes().alternate_path.address.source, kAlternateLocalGid);
  EXPECT_EQ(attributes().alternate_timeout, transition().ack_timeout);
}

TEST_F(Paths, AcceptLoadsTheAlternatePathBeforeTheRepIsSent) {
  for (const bool accepts : {true, false}) {
    rdmacm::Event request = event(EventKind::kConnectRequest);
    request.listen_id = kFirstId;  // peer to peer: the id itself accepts
    deliver(request);
    ASSERT_FALSE(cm_notices().at(0).new_id);
    rdmacm::ConnParam param{.responder_resources = 1, .initiator_depth = 1};
    param.alternate_accepted = accepts;
    keep_pending(process_.accept(id_, param, kNow, [](auto) {}));
    EXPECT_EQ(expect_message<ipc::Accept>().message.param.alternate_accepted, accepts);
    EXPECT_EQ(state(qp_), QpState::kRts);
    expect_alternate_path(accepts);
    if (!accepts) continue;
    qp_ = create_qp();  // for the next round
    ASSERT_TRUE(process_.set_qp(id_, qp_, kNow).has_value());
  }
}

TEST_F(Paths, AnOfferedPathIsLoadedOnlyWhenThePeerAcceptsIt) {
  deliver_response(false);
  establish();
  (void)cm_notices();
  const rdmacm::PathInfo path{
      .address = {.source = kAlternateLocalGid, .destination = kAlternateRemoteGid}};
  keep_pending(process_.load_path(id_, path, {}, [](auto) {}));
  EXPECT_EQ(expect_message<ipc::LoadPath>().message.path.address.interface, 3u);
  const auto refused_call =
      process_.load_path(id_, {.address = {.source = kRemoteGid}}, {}, [](auto) { FAIL(); });
  EXPECT_EQ(code_of(refused_call), Errc::kAddressNotFound);
  rdmacm::Event reply = event(EventKind::kPathAnswered);
  reply.status = 3;
  deliver(reply);
  expect_alternate_path(false);
  reply.status = 0;
  deliver(reply);
  expect_alternate_path(true);
  reply.param.alternate.address.source = kAlternateRemoteGid;  // not an address of this host
  deliver(reply);
  EXPECT_EQ(cm_notices().back().event.status, -EADDRNOTAVAIL);
}

TEST_F(Paths, AnAcceptedOfferIsLoadedBeforeTheAnswerIsSent) {
  deliver_response(false);
  establish();
  const auto never = [](auto) { FAIL(); };
  EXPECT_EQ(code_of(process_.answer_path(id_, {}, kNow, never)), Errc::kBadState);
  deliver(event(EventKind::kPathOffered));
  const std::vector<std::byte> too_much(149);
  EXPECT_EQ(code_of(process_.answer_path(id_, {.private_data = too_much}, kNow, never)),
            Errc::kInvalidArgument);
  keep_pending(process_.answer_path(id_, {.status = 3}, kNow, [](auto) {}));
  answer<ipc::AnswerPath>(ipc::Done{});
  expect_alternate_path(false);
  EXPECT_EQ(code_of(process_.answer_path(id_, {}, kNow, never)), Errc::kBadState);
  deliver(event(EventKind::kPathOffered));
  keep_pending(process_.answer_path(id_, {}, kNow, [](auto) {}));
  expect_alternate_path(true);
  EXPECT_EQ(expect_message<ipc::AnswerPath>().message.status, 0);
}

// A refused call does not change the QP, and the correct call still works.
TEST_F(Paths, ARefusedCallDoesNotMoveTheQp) {
  const auto never = [](auto) { FAIL(); };
  EXPECT_EQ(code_of(process_.establish(id_, {}, kNow, never)), Errc::kBadState);
  rdmacm::Event request = event(EventKind::kConnectRequest);
  request.listen_id = kFirstId;
  request.param.alternate = {};
  deliver(request);
  EXPECT_EQ(code_of(process_.establish(id_, {}, kNow, never)), Errc::kBadState);
  rdmacm::ConnParam param{};
  param.alternate_accepted = true;
  EXPECT_EQ(code_of(process_.accept(id_, param, kNow, never)), Errc::kInvalidArgument);
  request.param.alternate.address = {.source = kAlternateRemoteGid,
                                     .destination = kAlternateLocalGid};
  deliver(request);
  EXPECT_EQ(code_of(process_.accept(id_, param, kNow, never)), Errc::kAddressNotFound);
  EXPECT_EQ(state(qp_), QpState::kInit);
  deliver_response(false);
  const std::vector<std::byte> too_much(225);
  EXPECT_EQ(code_of(process_.establish(id_, too_much, kNow, never)), Errc::kInvalidArgument);
  EXPECT_EQ(state(qp_), QpState::kInit);
  establish();
  EXPECT_EQ(code_of(process_.establish(id_, {}, kNow, never)), Errc::kBadState);
  EXPECT_EQ(code_of(process_.disconnect(id_, too_much, kNow, never)), Errc::kInvalidArgument);
  EXPECT_EQ(state(qp_), QpState::kRts);
}

TEST_F(Paths, AcceptAfterAResponseAndEstablishAfterTheEndAreRefused) {
  const auto never = [](auto) { FAIL(); };
  deliver_response(true);
  EXPECT_EQ(code_of(process_.accept(id_, {}, kNow, never)), Errc::kBadState);
  const std::vector<std::byte> for_a_dreq(149);  // a REJ carries fewer bytes
  EXPECT_EQ(code_of(process_.disconnect(id_, for_a_dreq, kNow, never)), Errc::kInvalidArgument);
  deliver(event(EventKind::kDisconnected));
  EXPECT_EQ(code_of(process_.establish(id_, {}, kNow, never)), Errc::kBadState);
  EXPECT_EQ(code_of(process_.answer_path(id_, {}, kNow, never)), Errc::kBadState);
  EXPECT_EQ(state(qp_), QpState::kInit);
}

// After the agent has refused an accept(), the program may call it again with other parameters.
TEST_F(Paths, AnOfferedPathRemainsAfterARefusedAccept) {
  ASSERT_TRUE(process_.set_qp(id_, {}, kNow).has_value());  // the id does not know the QP now
  rdmacm::Event request = event(EventKind::kConnectRequest);
  request.listen_id = kFirstId;
  deliver(request);
  rdmacm::ConnParam param{};
  param.alternate_accepted = true;
  param.qpn = qpn_.value;
  for (const bool accepted : {false, true}) {
    keep_pending(process_.accept(id_, param, kNow, [](auto) {}));
    answer<ipc::Accept>(ipc::Done{.failed = !accepted, .code = Errc::kInvalidArgument});
  }
  const auto late_call = process_.accept(id_, param, kNow, [](auto) { FAIL(); });
  EXPECT_EQ(code_of(late_call), Errc::kBadState);
}

TEST_F(Paths, AMigrationAlsoChangesThePathOfThePendingDisconnect) {
  deliver_response(true);
  establish();
  // A packet of the peer arms the migration, so that the program can migrate.
  link::Burst burst;
  (void)process_.transmit(burst, kNow);
  wire::TransportPacket packet{.bth = {.opcode = wire::Opcode::kRcSendOnly,
                                       .destination_qpn = qpn_,
                                       .psn = {transition().rq_psn}}};
  std::vector<std::byte> bytes(wire::header_bytes(packet.bth.opcode));
  wire::write_headers(bytes, packet);
  process_.receive(
      {.address = {.source = kRemoteGid, .destination = kLocalGid}, .transport = bytes}, kNow);
  ASSERT_EQ(attributes().migration, hca::MigrationState::kArmed);
  while (process_.poll_message()) {
  }
  deliver(event(EventKind::kPathOffered));  // the program declines this path
  keep_pending(process_.answer_path(id_, {.status = 3}, kNow, [](auto) {}));
  answer<ipc::AnswerPath>(ipc::Done{});
  migrate();
  process_.on_timer(kNow);
  EXPECT_EQ(expect_message<ipc::Migrated>().message.qpn, qpn_);
  const Connection& connection = *process_.connection(id_).value();
  EXPECT_EQ(connection.path.address.source, kAlternateLocalGid);
  EXPECT_EQ(connection.path.sgid_index, 1u);
  EXPECT_EQ(connection.pending_disconnect.address.source, kAlternateLocalGid);
  EXPECT_EQ(connection.pending_disconnect.address.interface, 3u);
  EXPECT_EQ(connection.pending_disconnect.address.destination, kAlternateRemoteGid);
}

TEST_F(Paths, RejectAllowsOnlyTheReasonsOfTheCm) {
  for (const std::uint16_t reason : std::to_array<std::uint16_t>({0, 34, 36})) {
    EXPECT_EQ(code_of(process_.reject(id_, {.reason = reason}, [](auto) { FAIL(); })),
              Errc::kInvalidArgument);
  }
  rdmacm::Event request = event(EventKind::kConnectRequest);
  request.listen_id = kFirstId;
  deliver(request);
  keep_pending(process_.reject(id_, {.reason = 12}, [](auto) {}));
  EXPECT_EQ(expect_message<ipc::Reject>().message.reason, 12);
}

}  // namespace
}  // namespace verbena::process
