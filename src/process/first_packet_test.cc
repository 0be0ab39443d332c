#include "process/fixture_test.h"
#include "wire/headers.h"

// Tests the effects of the peer's first packet.  In RTR, the packet raises an event for the
// program. If the packet comes before the RTU, the connection manager is notified.
namespace verbena::process {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FirstPacket : public ProcessTest {
 protected:
  void SetUp() override {
    ProcessTest::SetUp();
    listener_ = create_id();
    child_ = report_connect_request(kFirstId);
    qp_ = drop_messages_and_create_qp();
    qpn_ = process_.engine().query_qp(qp_).value().qpn;
  }
  // Accepts the connection, but delivers no RTU.
  void accept() {
    ASSERT_TRUE(process_.set_qp(child_, qp_, kNow).has_value());
    keep_pending(process_.accept(child_, {}, kNow, [](auto) {}));
    ASSERT_EQ(state(qp_), QpState::kRts);
    drop_messages();
  }
  void move_to(QpState to) {
    using namespace hca::attribute;
    constexpr std::uint32_t kInit = kState | kPkeyIndex | kPort | kAccessFlags;
    constexpr std::uint32_t kRtr =
        kState | kPath | kPathMtu | kDestinationQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer;
    constexpr std::uint32_t kRts =
        kState | kSqPsn | kTimeout | kRetryCount | kRnrRetry | kMaxRdAtomic;
    hca::QpAttributes attributes;
    attributes.state = to;
    attributes.access_flags = hca::access::kRemoteWrite;
    attributes.path.address = {
        .source = kLocalGid, .destination = kRemoteGid, .source_port = 0xc123};
    attributes.destination_qpn = Qpn{transition().remote_qpn};
    attributes.rq_psn = Psn{transition().rq_psn};
    attributes.path_mtu = hca::Mtu::k1024;
    const std::uint32_t mask = to == QpState::kInit ? kInit : to == QpState::kRtr ? kRtr : kRts;
    ASSERT_TRUE(process_.engine().modify_qp(qp_, attributes, mask, kNow).has_value());
  }
  // Receives a WRITE of zero bytes, which needs no posted receive.
  void receive_packet(std::uint32_t number) {
    wire::TransportPacket packet{.bth = {.opcode = wire::Opcode::kRcWriteOnly,
                                         .destination_qpn = qpn_,
                                         .psn = {transition().rq_psn + number}}};
    std::vector<std::byte> bytes(wire::header_bytes(packet.bth.opcode));
    wire::write_headers(bytes, packet);
    process_.receive(
        {.address = {.source = kRemoteGid, .destination = kLocalGid}, .transport = bytes}, kNow);
  }
  // Returns the types of the program's asynchronous events (enum ibv_event_type).
  std::vector<std::uint32_t> events() {
    std::vector<std::uint32_t> all;
    while (const auto notice = process_.poll_notice()) {
      if (const auto* async = std::get_if<AsyncNotice>(&*notice)) all.push_back(async->type);
    }
    return all;
  }
  // Returns the QPNs of which the agent was notified.
  std::vector<std::uint32_t> notified_qpns() {
    std::vector<std::uint32_t> all;
    while (const auto out = process_.poll_message()) {
      const auto envelope = ipc::open(out->message).value();
      if (envelope.type != ipc::Type::kNotify) continue;
      all.push_back(ipc::decode<ipc::Notify>(envelope).value().qpn.value);
    }
    return all;
  }

  static constexpr std::uint32_t kCommEst = 4;  // IBV_EVENT_COMM_EST
  ConnectionHandle listener_, child_;
  hca::QpHandle qp_;
  Qpn qpn_{};
};

TEST_F(FirstPacket, InRtsOnlyTheConnectionManagerIsNotified) {
  accept();
  receive_packet(0);
  receive_packet(1);
  EXPECT_THAT(notified_qpns(), ElementsAre(qpn_.value));
  EXPECT_THAT(events(), IsEmpty());
}

TEST_F(FirstPacket, InRtrTheProgramAlsoGetsAnEvent) {
  move_to(QpState::kInit);
  move_to(QpState::kRtr);
  receive_packet(0);
  receive_packet(1);
  EXPECT_THAT(notified_qpns(), ElementsAre(qpn_.value));
  EXPECT_THAT(events(), ElementsAre(kCommEst));
  move_to(QpState::kRts);
  receive_packet(2);
  EXPECT_THAT(notified_qpns(), IsEmpty());
  EXPECT_THAT(events(), IsEmpty());
}

TEST_F(FirstPacket, InRtsAProgramThatMovesItsOwnQpGetsNoEvent) {
  move_to(QpState::kInit);
  move_to(QpState::kRtr);
  move_to(QpState::kRts);
  receive_packet(0);
  EXPECT_THAT(notified_qpns(), ElementsAre(qpn_.value));
  EXPECT_THAT(events(), IsEmpty());
}

TEST_F(FirstPacket, AfterEstablishmentNobodyIsNotified) {
  accept();
  deliver(kChildId, EventKind::kEstablished);
  receive_packet(0);
  EXPECT_THAT(notified_qpns(), IsEmpty());
  EXPECT_THAT(events(), IsEmpty());
}

}  // namespace
}  // namespace verbena::process
