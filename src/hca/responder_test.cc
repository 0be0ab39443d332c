#include "hca/responder.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using Lines = std::vector<std::string>;
using wire::Opcode;

// The peer's PSNs begin at 2000.
struct RespondingHost : HostUnderTest {
  explicit RespondingHost(const Options& options = {.mtu = Mtu::k256},
                          QpState state = QpState::kRts)
      : HostUnderTest(options, state) {
    host.engine.mark_established(qp).value();
  }
  wire::Reth reth(std::size_t offset, std::uint32_t length) const {
    return {host.address(offset), host.mr.rkey, length};
  }
  void read(std::uint32_t psn, std::size_t offset, std::uint32_t length) {
    request(Opcode::kRcReadRequest, psn, 0, true, reth(offset, length));
  }
  // Expects that the request got this NAK, and that the QP is in the error state with this event.
  void expect_refused(const std::string& nak, std::optional<QpEvent::Kind> kind) {
    EXPECT_EQ(out(), Lines{nak});
    EXPECT_EQ(state(), QpState::kError);
    std::vector<Event> expected;
    if (kind) expected.push_back(QpEvent{qp, 500 + 0x11, Qpn{0x11}, *kind});
    EXPECT_EQ(host.events(), expected);
  }
};

TEST(Responder, AcknowledgesManyRequestsAtOnce) {
  RespondingHost b;
  for (std::uint64_t id = 1; id <= 3; ++id) b.receive(id, 1000);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  b.request(Opcode::kRcSendFirst, 2001, 256, false);
  b.request(Opcode::kRcSendLast, 2002, 4);
  b.request(Opcode::kRcSendOnly, 2003, 0);
  EXPECT_EQ(b.out(), Lines{"ACK 2003"});
  const auto got = b.host.poll();
  ASSERT_EQ(text(got), "1 2 3");
  EXPECT_EQ(got[1].byte_len, 260u);
}

TEST(Responder, AnAcknowledgementFollowsTheRequestsThatAreSentWithIt) {
  RespondingHost b;
  b.receive(1, 1000);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  b.post(WrOpcode::kSend, 2, 5);
  const auto sent = b.out();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent.back(), "ACK 2000");
}

TEST(Responder, AnAcknowledgementIsSentAlthoughASendRequestFails) {
  RespondingHost b;
  b.receive(1, 1000);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  const Sge nowhere{.length = 1, .lkey = 0};
  ASSERT_TRUE(b.host.engine.post_send(b.qp, {.sges = std::span(&nowhere, 1)}));
  EXPECT_EQ(b.out(), Lines{"ACK 2000"});
  EXPECT_EQ(b.state(), QpState::kError);
}

TEST(Responder, RequestsThatFillTheBurstLeaveRoomForAnAcknowledgement) {
  RespondingHost b;
  b.receive(1, 1000);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  for (int i = 0; i < 40; ++i) b.post(WrOpcode::kSend, 2, 5);
  while (b.burst.free_packets() > 8) {
    (void)b.burst.prepare();
    b.burst.commit({}, 64);
  }
  EXPECT_TRUE(b.host.engine.transmit(b.burst, b.now));
  ASSERT_TRUE(b.burst.full());
  const auto packets = b.burst.packets();
  EXPECT_EQ(text(b.burst.transport(packets[packets.size() - 8])), "ACK 2000");
}

TEST(Responder, SendsNoAckWithoutTheAckReqBit) {
  RespondingHost b;
  b.receive(1, 1000);
  b.request(Opcode::kRcSendOnly, 2000, 5, false);
  EXPECT_EQ(b.out(), Lines{});
  EXPECT_EQ(text(b.host.poll()), "1");
}

TEST(Responder, ReportsAGapOnce) {
  RespondingHost b;
  b.receive(1, 100);
  b.request(Opcode::kRcSendOnly, 2001, 5);
  b.request(Opcode::kRcSendOnly, 2002, 5);
  EXPECT_EQ(b.out(), Lines{"NAK0 2000"});
  b.request(Opcode::kRcSendOnly, 2003, 5);
  EXPECT_EQ(b.out(), Lines{});
  b.request(Opcode::kRcSendOnly, 2000, 5);
  EXPECT_EQ(b.out(), Lines{"ACK 2000"});
  b.request(Opcode::kRcSendOnly, 2002, 5);
  EXPECT_EQ(b.out(), Lines{"NAK0 2001"});
}

TEST(Responder, AGapThatClosesBeforeTheNakIsSentGetsAnAck) {
  RespondingHost b;
  b.receive(1, 100);
  b.request(Opcode::kRcSendOnly, 2001, 5);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  EXPECT_EQ(b.out(), Lines{"ACK 2000"});
}

TEST(Responder, AGapThatClosesWithoutAckReqGetsAnAck) {
  RespondingHost b;
  b.receive(1, 100);
  b.request(Opcode::kRcSendOnly, 2001, 5);
  b.request(Opcode::kRcSendOnly, 2000, 5, false);
  EXPECT_EQ(b.out(), Lines{"ACK 2000"});
}

TEST(Responder, AcknowledgesADuplicateAgainAndDoesNotExecuteIt) {
  RespondingHost b;
  b.receive(1, 100);
  b.receive(2, 100);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  b.request(Opcode::kRcWriteOnly, 2001, 4, true, b.reth(500, 4));
  b.out();
  b.host.memory[500] = std::byte{0};
  b.request(Opcode::kRcSendOnly, 2000, 5);
  EXPECT_EQ(b.out(), Lines{"ACK 2001"});
  b.request(Opcode::kRcWriteOnly, 2001, 4, true, b.reth(500, 4));
  EXPECT_EQ(b.out(), Lines{"ACK 2001"});
  EXPECT_EQ(text(b.host.poll()), "1");
  EXPECT_EQ(b.host.memory[500], std::byte{0});
}

TEST(Responder, SendsAnRnrNakForEachTryUntilThereIsAReceive) {
  RespondingHost b;
  b.request(Opcode::kRcSendOnly, 2000, 5);
  b.request(Opcode::kRcSendOnly, 2001, 5);
  EXPECT_EQ(b.out(), Lines{"RNR_NAK 2000"});
  b.request(Opcode::kRcSendOnly, 2000, 5);
  EXPECT_EQ(b.out(), Lines{"RNR_NAK 2000"});
  b.receive(1, 100);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  EXPECT_EQ(b.out(), Lines{"ACK 2000"});
  EXPECT_EQ(text(b.host.poll()), "1");
}

// Posts a send, and its receive after `delay`.  Returns the number of retries, or the error of the
// send.  `known_retries` is the number of the sender's retries that the receiver assumes.
std::string send_with_late_receive(Duration delay, std::uint8_t retries,
                                   std::uint8_t known_retries) {
  Pair p({.rnr_retry = retries, .peer_rnr_retries = known_retries});
  p.send(1, 0, 5).value();
  p.wire.run(delay);
  p.receive(2, 0, 5).value();
  p.wire.run(5 * kSecond);
  const auto done = p.a.poll();
  if (text(done) != "1") return text(done);
  EXPECT_EQ(text(p.b.poll()), "2");
  // Each NAK has caused one retry.
  const auto naks = p.b.engine.counters()[Counter::kRnrNaksOut];
  return std::to_string(naks) + " retries";
}

TEST(Responder, RnrTimersGrowForAPeerWithLimitedRetries) {
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  const auto with_5_retries = [](auto delay, unsigned known_retries) {
    return send_with_late_receive(delay, 5, static_cast<std::uint8_t>(known_retries));
  };
  // Five retries with a timer of 0.64 ms take only 3.2 ms.
  EXPECT_EQ(with_5_retries(milliseconds(100), 0), "1:RNR retries exceeded");
  EXPECT_EQ(with_5_retries(microseconds(500), 5), "1 retries");
  EXPECT_EQ(with_5_retries(milliseconds(1), 5), "2 retries");
  EXPECT_EQ(with_5_retries(milliseconds(100), 5), "5 retries");
  EXPECT_EQ(with_5_retries(milliseconds(700), 5), "5 retries");
  EXPECT_EQ(with_5_retries(milliseconds(800), 5), "1:RNR retries exceeded");
  EXPECT_EQ(send_with_late_receive(milliseconds(600), 1, 1), "1 retries");
  // A peer with unlimited retries gets short timers, so the send takes more than 900 retries.
  EXPECT_EQ(send_with_late_receive(milliseconds(600), 7, 7).front(), '9');
}

TEST(Responder, AWriteWithImmediateNeedsAReceiveBeforeItsLastPacket) {
  RespondingHost b;
  b.request(Opcode::kRcWriteFirst, 2000, 256, false, b.reth(0, 260));
  b.request(Opcode::kRcWriteLastImm, 2001, 4);
  EXPECT_EQ(b.out(), Lines{"RNR_NAK 2001"});
  b.receive(1, 0);
  b.request(Opcode::kRcWriteLastImm, 2001, 4);
  EXPECT_EQ(b.out(), Lines{"ACK 2001"});
  const auto got = b.host.poll();
  ASSERT_EQ(text(got), "1");
  EXPECT_EQ(got[0].byte_len, 260u);
}

// ---- READ ---------------------------------------------------------------------------------------

TEST(Responder, AReadResponseAcknowledgesEarlierRequests) {
  RespondingHost b;
  b.receive(1, 100);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  b.read(2001, 0, 600);
  EXPECT_EQ(b.out(), (Lines{"RESP_FIRST 2001 256", "RESP_MIDDLE 2002 256", "RESP_LAST 2003 88"}));
  b.read(2004, 0, 0);
  EXPECT_EQ(b.out(), Lines{"RESP_ONLY 2004 0"});
}

TEST(Responder, AnAcknowledgementNeverOvertakesAReadResponse) {
  RespondingHost b;
  b.receive(1, 100);
  b.read(2000, 0, 300);
  b.request(Opcode::kRcSendOnly, 2002, 5);
  EXPECT_EQ(b.out(), (Lines{"RESP_FIRST 2000 256", "RESP_LAST 2001 44", "ACK 2002"}));
}

TEST(Responder, RepeatsAReadFromTheRequestedPsn) {
  RespondingHost b;
  b.read(2000, 0, 1000);
  b.read(2004, 0, 100);
  EXPECT_EQ(b.out().size(), 5u);
  b.read(2002, 512, 488);
  EXPECT_EQ(b.out(), (Lines{"RESP_FIRST 2002 256", "RESP_LAST 2003 232"}));
  b.read(2004, 0, 100);
  b.read(2002, 512, 488);
  b.read(2004, 0, 100);
  EXPECT_EQ(b.out(), (Lines{"RESP_FIRST 2002 256", "RESP_LAST 2003 232", "RESP_ONLY 2004 100"}));
}

TEST(Responder, ARepeatedReadDoesNotShortenAWaitingResponse) {
  RespondingHost b;
  b.read(2000, 0, 1000);
  b.read(2002, 512, 488);
  EXPECT_EQ(b.out(), (Lines{"RESP_FIRST 2000 256", "RESP_MIDDLE 2001 256", "RESP_MIDDLE 2002 256",
                            "RESP_LAST 2003 232"}));
}

TEST(Responder, IgnoresARepeatedReadThatExceedsTheOriginal) {
  RespondingHost b;
  b.read(2000, 0, 300);
  b.out();
  b.read(2001, 0, 300);
  EXPECT_EQ(b.out(), Lines{});
  EXPECT_EQ(b.state(), QpState::kRts);
}

// The network duplicates a READ.  The requester has its response already, and sends the next READ.
TEST(Responder, ANewReadReplacesARepeatedResponse) {
  RespondingHost b({.mtu = Mtu::k256, .rd_atomic = 1});
  b.read(2000, 0, 600);
  EXPECT_EQ(b.out().size(), 3u);
  b.read(2000, 0, 600);
  b.read(2003, 0, 10);
  EXPECT_EQ(b.out(), Lines{"RESP_ONLY 2003 10"});
  EXPECT_EQ(b.state(), QpState::kRts);
}

TEST(Responder, ALateCopyOfAReadReplacesNoOtherResponse) {
  RespondingHost b({.mtu = Mtu::k256, .rd_atomic = 1});
  b.read(2000, 0, 600);
  b.out();
  b.read(2003, 0, 10);
  b.read(2000, 0, 600);
  EXPECT_EQ(b.out(), Lines{"RESP_ONLY 2003 10"});
}

TEST(Responder, RefusesMoreReadsThanMaxDestRdAtomic) {
  RespondingHost b({.mtu = Mtu::k256, .rd_atomic = 2});
  b.read(2000, 0, 10);
  b.read(2001, 0, 10);
  b.read(2002, 0, 10);
  // The requests before the refused request get their responses.
  EXPECT_EQ(b.out(), (Lines{"RESP_ONLY 2000 10", "RESP_ONLY 2001 10", "NAK1 2002"}));
  EXPECT_EQ(b.state(), QpState::kError);
}

// The requester repeats its READs before their responses arrive.  Then the old READs complete, and
// it sends a new READ.  The repeated READs and the new READ may arrive together.  The responder
// must not refuse the new READ.
TEST(Responder, ANewReadReplacesTheOldestRepeatedRead) {
  RespondingHost b({.mtu = Mtu::k256, .rd_atomic = 2});
  b.read(2000, 0, 600);
  b.read(2003, 0, 10);
  EXPECT_EQ(b.out().size(), 4u);
  b.read(2000, 0, 600);
  b.read(2003, 0, 10);
  b.read(2004, 0, 20);
  EXPECT_EQ(b.out(), (Lines{"RESP_ONLY 2003 10", "RESP_ONLY 2004 20"}));
  EXPECT_EQ(b.state(), QpState::kRts);
  // A new READ does not replace a READ that was never answered.
  b.read(2003, 0, 10);
  b.read(2005, 0, 30);
  b.read(2006, 0, 40);
  EXPECT_EQ(b.out(), (Lines{"RESP_ONLY 2005 30", "RESP_ONLY 2006 40"}));
  b.read(2007, 0, 50);
  b.read(2008, 0, 60);
  b.read(2009, 0, 70);
  EXPECT_EQ(b.out(), (Lines{"RESP_ONLY 2007 50", "RESP_ONLY 2008 60", "NAK1 2009"}));
}

TEST(Responder, RepeatedReadsStayWithinMaxDestRdAtomic) {
  RespondingHost b({.mtu = Mtu::k256, .rd_atomic = 2});
  for (std::uint32_t psn = 2000; psn < 2100; ++psn) {
    b.read(psn, 0, 10);
    b.out();
  }
  for (std::uint32_t psn = 2099; psn >= 2000; --psn) b.read(psn, 0, 10);
  EXPECT_EQ(b.out(), (Lines{"RESP_ONLY 2000 10", "RESP_ONLY 2001 10"}));
  EXPECT_EQ(b.state(), QpState::kRts);
}

TEST(Responder, RefusesAReadWhoseMemoryIsDeregistered) {
  RespondingHost b;
  b.read(2000, 0, 1000);
  ASSERT_TRUE(b.host.engine.deregister_mr(b.host.mr.handle));
  b.expect_refused("NAK2 2000", QpEvent::Kind::kAccessError);
}

TEST(Responder, ALongReadTakesOneJobAndSeveralBursts) {
  RespondingHost b;
  b.read(2000, 0, 1 << 20);
  link::Burst burst;
  EXPECT_TRUE(b.host.engine.transmit(burst, b.now));
  EXPECT_EQ(burst.size(), link::Burst::kPacketsMax);
  EXPECT_EQ(b.out().size(), 4096u - link::Burst::kPacketsMax);
}

// ---- refused requests ---------------------------------------------------------------------------

TEST(Responder, RefusesPacketsThatDoNotContinueTheMessage) {
  const std::vector<std::vector<Opcode>> wrong = {
      {Opcode::kRcSendMiddle},
      {Opcode::kRcSendLast},
      {Opcode::kRcWriteLast},
      {Opcode::kRcSendFirst, Opcode::kRcSendFirst},
      {Opcode::kRcSendFirst, Opcode::kRcSendOnly},
      {Opcode::kRcSendFirst, Opcode::kRcWriteMiddle},
      {Opcode::kRcSendFirst, Opcode::kRcReadRequest},
  };
  for (const auto& opcodes : wrong) {
    RespondingHost b;
    b.receive(1, 10000);
    std::uint32_t psn = 2000;
    for (const Opcode opcode : opcodes) {
      const bool data = wire::has_payload(opcode);
      b.request(opcode, psn++, data ? 256 : 0, false, b.reth(0, 256));
    }
    b.expect_refused("NAK1 " + std::to_string(psn - 1), QpEvent::Kind::kRequestError);
    EXPECT_EQ(text(b.host.poll()), "1:flushed");
  }
}

TEST(Responder, RefusesWrongLengths) {
  struct Case {
    Opcode opcode;
    std::size_t bytes;
    std::uint32_t length;
  };
  for (const Case& c : {Case{Opcode::kRcSendFirst, 255, 0}, Case{Opcode::kRcSendFirst, 257, 0},
                        Case{Opcode::kRcSendOnly, 257, 0}, Case{Opcode::kRcWriteOnly, 5, 4},
                        Case{Opcode::kRcWriteOnly, 4, 5}, Case{Opcode::kRcWriteFirst, 256, 256},
                        Case{Opcode::kRcWriteFirst, 256, 0x80000001},
                        Case{Opcode::kRcReadRequest, 0, 0x80000001}}) {
    SCOPED_TRACE(::testing::Message() << unsigned(c.opcode) << " " << c.bytes << " " << c.length);
    RespondingHost b;
    b.receive(1, 10000);
    b.request(c.opcode, 2000, c.bytes, true, b.reth(0, c.length));
    b.expect_refused("NAK1 2000", QpEvent::Kind::kRequestError);
  }
}

TEST(Responder, RefusesAnEmptyLastPacket) {
  RespondingHost b;
  b.receive(1, 10000);
  b.request(Opcode::kRcSendFirst, 2000, 256, false);
  b.request(Opcode::kRcSendLast, 2001, 0);
  b.expect_refused("NAK1 2001", QpEvent::Kind::kRequestError);
}

TEST(Responder, ATooLongMessageFailsAtBothEnds) {
  RespondingHost b;
  b.receive(1, 300);
  b.receive(2, 300);
  b.request(Opcode::kRcSendFirst, 2000, 256, false);
  b.request(Opcode::kRcSendLast, 2001, 45);
  b.expect_refused("NAK1 2001", std::nullopt);
  EXPECT_EQ(text(b.host.poll()), "1:local length error 2:flushed");
}

TEST(Responder, AReceiveWithABadKeyCausesARemoteOperationalError) {
  RespondingHost b;
  const Sge bad{b.host.address(0), 100, b.host.mr.lkey + 1};
  ASSERT_TRUE(b.host.engine.post_recv(b.qp, {.wr_id = 1, .sges = {&bad, 1}}));
  b.request(Opcode::kRcSendOnly, 2000, 5);
  b.expect_refused("NAK3 2000", std::nullopt);
  EXPECT_EQ(text(b.host.poll()), "1:local protection error");
}

// Returns the response to a WRITE or READ of 100 bytes that `change` has modified.
std::string answer_to(bool read, const std::function<void(RespondingHost&, wire::Reth&)>& change) {
  RespondingHost b;
  wire::Reth reth = b.reth(0, 100);
  change(b, reth);
  b.request(read ? Opcode::kRcReadRequest : Opcode::kRcWriteOnly, 2000, read ? 0 : 100, true, reth);
  const Lines lines = b.out();
  return lines.size() == 1 ? lines[0] : "nothing";
}

// Registers a region with these rights, and puts its key into `reth`.
void use_region(RespondingHost& b, wire::Reth& reth, PdHandle pd, std::uint32_t flags) {
  reth.r_key = b.host.engine.register_mr(pd, b.host.address(0), 100, reth.virtual_address, flags)
                   .value()
                   .rkey;
}

TEST(Responder, ChecksKeyRangeAndRightsOfWritesAndReads) {
  using namespace access;
  const std::string refused = "NAK2 2000";
  for (const bool read : {false, true}) {
    const std::string good = read ? "RESP_ONLY 2000 100" : "ACK 2000";
    const std::uint32_t right = kLocalWrite | (read ? kRemoteRead : kRemoteWrite);
    const std::uint32_t other = kLocalWrite | (read ? kRemoteWrite : kRemoteRead);
    const auto attempt = [&](const auto& change) { return answer_to(read, change); };
    EXPECT_EQ(attempt([](RespondingHost&, wire::Reth&) {}), good);
    EXPECT_EQ(attempt([](RespondingHost&, wire::Reth& r) { r.r_key ^= 1; }), refused);
    EXPECT_EQ(attempt([](RespondingHost&, wire::Reth& r) { r.virtual_address -= 1; }), refused);
    EXPECT_EQ(attempt([](RespondingHost&, wire::Reth& r) { r.virtual_address += (4 << 20) - 100; }),
              good);
    EXPECT_EQ(attempt([](RespondingHost&, wire::Reth& r) { r.virtual_address += (4 << 20) - 99; }),
              refused);
    EXPECT_EQ(attempt([](RespondingHost&, wire::Reth& r) { r.virtual_address = ~0ull; }), refused);
    EXPECT_EQ(
        attempt([&](RespondingHost& b, wire::Reth& r) { use_region(b, r, b.host.pd, right); }),
        good);
    EXPECT_EQ(
        attempt([&](RespondingHost& b, wire::Reth& r) { use_region(b, r, b.host.pd, other); }),
        refused);
    // The key belongs to another protection domain.
    EXPECT_EQ(attempt([&](RespondingHost& b, wire::Reth& r) {
                use_region(b, r, b.host.engine.create_pd().value(), right);
              }),
              refused);
    // The region ends at 2^64 - 1.
    EXPECT_EQ(attempt([&](RespondingHost& b, wire::Reth& r) {
                r.virtual_address = ~std::uint64_t{0} - 99;
                use_region(b, r, b.host.pd, right);
              }),
              good);
    EXPECT_EQ(attempt([&](RespondingHost& b, wire::Reth& r) {
                r.virtual_address = ~std::uint64_t{0} - 99;
                use_region(b, r, b.host.pd, right);
                r.virtual_address += 1;
              }),
              refused);
    // The QP does not allow remote access.
    EXPECT_EQ(attempt([&](RespondingHost& b, wire::Reth&) {
                QpAttributes a;
                a.access_flags = read ? kRemoteWrite : kRemoteRead;
                b.host.engine.modify_qp(b.qp, a, attribute::kAccessFlags, b.now).value();
              }),
              "NAK1 2000");
  }
}

TEST(Responder, AnAccessErrorRaisesItsEvent) {
  RespondingHost b;
  b.receive(1, 10);
  b.request(Opcode::kRcWriteOnly, 2000, 4, true, {0, 1, 4});
  b.expect_refused("NAK2 2000", QpEvent::Kind::kAccessError);
  EXPECT_EQ(text(b.host.poll()), "1:flushed");
}

TEST(Responder, RefusesATooLongWriteAtItsFirstPacket) {
  RespondingHost b;
  b.request(Opcode::kRcWriteFirst, 2000, 256, false, b.reth((4 << 20) - 256, 257));
  b.expect_refused("NAK2 2000", QpEvent::Kind::kAccessError);
  EXPECT_EQ(b.host.memory[(4 << 20) - 1], std::byte{0});
}

TEST(Responder, NothingIsWrittenAfterADeregistration) {
  RespondingHost b;
  b.request(Opcode::kRcWriteFirst, 2000, 256, false, b.reth(0, 512));
  ASSERT_TRUE(b.host.engine.deregister_mr(b.host.mr.handle));
  b.request(Opcode::kRcWriteLast, 2001, 256);
  b.expect_refused("NAK2 2001", QpEvent::Kind::kAccessError);
  EXPECT_EQ(b.host.memory[255], std::byte{0x5a});
  EXPECT_EQ(b.host.memory[256], std::byte{0});
}

TEST(Responder, AnEmptyWriteNeedsNoKey) {
  RespondingHost b;
  b.request(Opcode::kRcWriteOnly, 2000, 0, true, {0, 0, 0});
  EXPECT_EQ(b.out(), Lines{"ACK 2000"});
}

TEST(Responder, SendsNothingInTheErrorState) {
  RespondingHost b;
  QpAttributes a;
  a.state = QpState::kError;
  b.receive(1, 10);
  b.read(2000, 0, 1000);
  ASSERT_TRUE(b.host.engine.modify_qp(b.qp, a, attribute::kState, b.now));
  b.request(Opcode::kRcSendOnly, 2004, 5);
  EXPECT_EQ(b.out(), Lines{});
  EXPECT_EQ(text(b.host.poll()), "1:flushed");
}

TEST(Responder, ResetClearsAllState) {
  RespondingHost b;
  b.receive(1, 10);
  b.receive(2, 10);
  b.post(WrOpcode::kSend, 3, 10);
  b.request(Opcode::kRcSendOnly, 2000, 5);
  QpAttributes a;
  a.state = QpState::kReset;
  ASSERT_TRUE(b.host.engine.modify_qp(b.qp, a, attribute::kState, b.now));
  EXPECT_EQ(b.out(), Lines{});
  EXPECT_EQ(text(b.host.poll()), "");
  a = attributes_for(b.host, b.host, b.o, Qpn{0x22}, Psn{5}, Psn{6});
  a.path.address.destination = gid_of(2);
  bring_to_state(b.host, b.qp, a, QpState::kRts);
  b.post(WrOpcode::kSend, 4, 10);
  EXPECT_EQ(b.out(), Lines{"SEND_ONLY 5 10 A"});
  b.request(Opcode::kRcSendOnly, 6, 5);
  EXPECT_EQ(b.out(), Lines{"RNR_NAK 6"});
}

}  // namespace
}  // namespace verbena::hca
