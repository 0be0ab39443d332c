// Tests requests that consume a receive and have a bad key.  Checks the completion of the receive,
// the later receives, and the response to the peer (vol1 9.9.6.3, 11.6.2).

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using Lines = std::vector<std::string>;
using wire::Opcode;

// The peer's PSNs begin at 2000.
struct Target : HostUnderTest {
  Target() : HostUnderTest({.mtu = Mtu::k256}) { host.engine.mark_established(qp).value(); }
  // Delivers a WRITE of the peer.
  void write(Opcode opcode, std::uint32_t psn, std::size_t bytes, std::uint32_t length,
             std::uint32_t r_key) {
    request(opcode, psn, bytes, true, {host.address(0), r_key, length});
  }
  // Delivers a SEND that invalidates the key of a region.  A peer may invalidate only windows.
  void send_invalidate(Opcode opcode, std::uint32_t psn, std::size_t bytes) {
    wire::TransportPacket packet;
    packet.bth.opcode = opcode;
    packet.bth.psn = Psn{psn};
    packet.bth.acknowledge_request = true;
    packet.invalidate_r_key = host.mr.rkey;
    deliver(packet, bytes);
  }
};

constexpr std::uint32_t kUnknownKey = 0x12345600;

TEST(ReceiveErrors, AWriteWithImmediateAndABadKeyFailsItsReceive) {
  Target t;
  for (std::uint64_t id = 1; id <= 3; ++id) t.receive(id, 100);
  t.write(Opcode::kRcWriteOnlyImm, 2000, 8, 8, kUnknownKey);
  EXPECT_EQ(text(t.host.poll()), "1:local access error 2:flushed 3:flushed");
  EXPECT_EQ(t.out(), Lines{"NAK2 2000"});
  EXPECT_EQ(t.state(), QpState::kError);
  // The completion tells the program, so there is no event.
  EXPECT_TRUE(t.host.events().empty());
  const auto failure = t.host.engine.poll_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status, WcStatus::kLocalAccessError);
  EXPECT_TRUE(failure->is_receive);
}

TEST(ReceiveErrors, ADeregistrationBeforeTheImmediateDataFailsTheReceive) {
  Target t;
  t.receive(1, 100);
  t.receive(2, 100);
  t.write(Opcode::kRcWriteFirst, 2000, 256, 264, t.host.mr.rkey);
  ASSERT_TRUE(t.host.engine.deregister_mr(t.host.mr.handle));
  t.request(Opcode::kRcWriteLastImm, 2001, 8);
  EXPECT_EQ(text(t.host.poll()), "1:local access error 2:flushed");
  EXPECT_EQ(t.out(), Lines{"NAK2 2001"});
}

// The first packet uses no receive yet, because it does not show whether immediate data will
// follow.
TEST(ReceiveErrors, AFirstPacketWithABadKeyRaisesAnEventAndFlushesReceives) {
  Target t;
  t.receive(1, 100);
  t.write(Opcode::kRcWriteFirst, 2000, 256, 264, kUnknownKey);
  EXPECT_EQ(text(t.host.poll()), "1:flushed");
  EXPECT_EQ(t.out(), Lines{"NAK2 2000"});
  EXPECT_EQ(
      t.host.events(),
      (std::vector<Event>{QpEvent{t.qp, 500 + 0x11, Qpn{0x11}, QpEvent::Kind::kAccessError}}));
}

TEST(ReceiveErrors, ChecksForAReceiveBeforeTheKeyOfAWriteWithImmediate) {
  Target t;
  t.write(Opcode::kRcWriteOnlyImm, 2000, 8, 8, kUnknownKey);
  EXPECT_EQ(t.state(), QpState::kRts);
  t.receive(1, 100);
  t.write(Opcode::kRcWriteOnlyImm, 2000, 8, 8, kUnknownKey);
  EXPECT_EQ(text(t.host.poll()), "1:local access error");
}

TEST(ReceiveErrors, FailsOneReceiveOfASharedQueueAndKeepsTheOthers) {
  Options o;
  Host a(1), b(2);
  Wire wire;
  wire.attach(a);
  wire.attach(b);
  const SrqHandle srq = b.engine.create_srq(b.pd, {.max_wr = 4, .max_sge = 1}, 900).value();
  const QpHandle qa = create_connected_qp(a, o, Qpn{0x11});
  const QpHandle qb = b.engine
                          .create_qp({.type = QpType::kRc,
                                      .pd = b.pd,
                                      .send_cq = b.cq,
                                      .recv_cq = b.cq,
                                      .srq = srq,
                                      .caps = o.caps,
                                      .cookie = 600},
                                     Qpn{0x22})
                          .value();
  bring_to_state(a, qa, attributes_for(a, b, o, Qpn{0x22}, o.psn_a, o.psn_b), QpState::kRts);
  bring_to_state(b, qb, attributes_for(b, a, o, Qpn{0x11}, o.psn_b, o.psn_a), QpState::kRts);
  b.engine.mark_established(qb).value();
  const Sge buffer = b.sge(0, 100), data = a.sge(0, 8);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(b.engine.post_srq_recv(srq, {.wr_id = id, .sges = {&buffer, 1}}));
  }
  ASSERT_TRUE(b.engine.arm_srq(srq, 2));  // raises an event if two receives are taken
  ASSERT_TRUE(a.engine.post_send(qa, {.wr_id = 10,
                                      .opcode = WrOpcode::kWriteImm,
                                      .flags = send_flag::kSignaled,
                                      .sges = {&data, 1},
                                      .remote_address = b.address(0),
                                      .r_key = kUnknownKey}));
  wire.run();
  EXPECT_EQ(text(b.poll()), "1:local access error");
  EXPECT_EQ(text(a.poll()), "10:remote access error");
  EXPECT_EQ(b.events(), (std::vector<Event>{QpEvent{qb, 600, Qpn{0x22}, QpEvent::Kind::kLastWqe}}));
}

// The specification allows no NAK for errors of class J (vol1 9.9.6.3), and a request that was not
// executed gets no acknowledgement.
TEST(ReceiveErrors, ASendThatInvalidatesABadKeyGetsNoAnswer) {
  Target t;
  t.receive(1, 100);
  t.receive(2, 100);
  t.send_invalidate(Opcode::kRcSendOnlyInvalidate, 2000, 8);
  EXPECT_EQ(text(t.host.poll()), "1:remote invalid request 2:flushed");
  EXPECT_EQ(t.out(), Lines{});
  EXPECT_EQ(t.state(), QpState::kError);
  t.send_invalidate(Opcode::kRcSendOnlyInvalidate, 2000, 8);  // the peer tries again
  EXPECT_EQ(t.out(), Lines{});
}

TEST(ReceiveErrors, AnswersAllRequestsBeforeABadInvalidate) {
  Target t;
  for (std::uint64_t id = 1; id <= 3; ++id) t.receive(id, 1000);
  t.request(Opcode::kRcReadRequest, 2000, 0, true, {t.host.address(0), t.host.mr.rkey, 300});
  t.request(Opcode::kRcSendOnly, 2002, 8);
  t.request(Opcode::kRcSendFirst, 2003, 256, false);
  t.request(Opcode::kRcSendMiddle, 2005, 256);  // a gap, whose NAK is not sent yet
  t.request(Opcode::kRcSendMiddle, 2004, 256, false);
  t.send_invalidate(Opcode::kRcSendLastInvalidate, 2005, 8);
  EXPECT_EQ(text(t.host.poll()), "1 2:remote invalid request 3:flushed");
  EXPECT_EQ(t.out(), (Lines{"RESP_FIRST 2000 256", "RESP_LAST 2001 44", "ACK 2004"}));
  EXPECT_EQ(t.out(), Lines{});
}

TEST(ReceiveErrors, ABadInvalidateThatClosesAGapGetsNoNak) {
  Target t;
  t.receive(1, 100);
  t.receive(2, 100);
  t.request(Opcode::kRcSendOnly, 2000, 8);
  t.request(Opcode::kRcSendOnly, 2002, 8);
  t.send_invalidate(Opcode::kRcSendOnlyInvalidate, 2001, 8);
  EXPECT_EQ(text(t.host.poll()), "1 2:remote invalid request");
  EXPECT_EQ(t.out(), Lines{"ACK 2000"});
}

}  // namespace
}  // namespace verbena::hca
