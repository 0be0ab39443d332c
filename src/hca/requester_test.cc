#include "hca/requester.h"

#include <gtest/gtest.h>

#include <set>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using Lines = std::vector<std::string>;
using std::chrono::milliseconds;
using wire::NakCode;
using wire::Opcode;

constexpr std::size_t kTargetOffset = 1 << 20;

TEST(Requester, NumbersPacketsAndRequestsAnAckAtTheEnd) {
  HostUnderTest s({.mtu = Mtu::k256});
  s.post(WrOpcode::kSend, 1, 600);
  s.post(WrOpcode::kWriteImm, 2, 256);
  EXPECT_EQ(s.out(), (Lines{"SEND_FIRST 1000 256", "SEND_MIDDLE 1001 256", "SEND_LAST 1002 88 A",
                            "WRITE_ONLY_IMM 1003 256 A"}));
  s.acknowledge(1003, wire::ack(2));
  EXPECT_EQ(text(s.host.poll()), "1 2");
  EXPECT_EQ(s.out(), Lines{});
}

TEST(Requester, RequestsAcksOftenEnoughToKeepTheWindowMoving) {
  HostUnderTest s({.mtu = Mtu::k1024});
  s.post(WrOpcode::kWrite, 1, 100 * 1024);
  const Lines first = s.out();
  ASSERT_EQ(first.size(), 16u);  // the first window is 16 KiB
  EXPECT_EQ(first[3], "WRITE_MIDDLE 1003 1024 A");
  EXPECT_EQ(first[4], "WRITE_MIDDLE 1004 1024");
  EXPECT_EQ(first[15], "WRITE_MIDDLE 1015 1024 A");
  s.acknowledge(1003, wire::ack(0));
  EXPECT_EQ(s.out().size(), 8u);  // 4 packets were acknowledged, and the window grew by 4
}

TEST(Requester, TheWindowGrowsTo128KiBAndNoFurther) {
  HostUnderTest s({.mtu = Mtu::k4096});
  s.post(WrOpcode::kWrite, 1, 3 << 20);
  std::uint32_t sent = 0, in_flight_max = 0;
  for (std::uint32_t acked = 0; acked < 700;) {
    sent += static_cast<std::uint32_t>(s.out().size());
    in_flight_max = std::max(in_flight_max, sent - acked);
    acked = sent;
    s.acknowledge(1000 + acked - 1, wire::ack(0));
  }
  EXPECT_EQ(in_flight_max, 32u);
}

TEST(Requester, RetransmitsFromThePsnOfASequenceNak) {
  HostUnderTest s({.mtu = Mtu::k256});
  for (std::uint64_t id = 1; id <= 4; ++id) s.post(WrOpcode::kSend, id, 10);
  s.out();
  s.acknowledge(1002, wire::nak(2, NakCode::kPsnSequenceError));
  EXPECT_EQ(text(s.host.poll()), "1 2");  // the NAK acknowledges the packets before its PSN
  EXPECT_EQ(s.out(), (Lines{"SEND_ONLY 1002 10 A", "SEND_ONLY 1003 10 A"}));
  s.acknowledge(1003, wire::ack(4));
  EXPECT_EQ(text(s.host.poll()), "3 4");
}

TEST(Requester, ResumesInTheMiddleOfAMessage) {
  HostUnderTest s({.mtu = Mtu::k256});
  s.post(WrOpcode::kWrite, 1, 1000);
  s.out();
  s.acknowledge(1002, wire::nak(0, NakCode::kPsnSequenceError));
  EXPECT_EQ(s.out(), (Lines{"WRITE_MIDDLE 1002 256", "WRITE_LAST 1003 232 A"}));
}

TEST(Requester, RetransmitsWhenTheTimerExpires) {
  HostUnderTest s({.timeout = 12});
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  EXPECT_EQ(s.host.engine.deadline(), s.now + timeout_of_code(12));
  s.wait_for_timer();
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1000 10 A"});
  s.acknowledge(1000, wire::ack(1));
  EXPECT_EQ(text(s.host.poll()), "1");
}

TEST(Requester, AnAckBeforeTheRetransmissionPreventsIt) {
  HostUnderTest s({.mtu = Mtu::k256, .timeout = 12});
  s.post(WrOpcode::kSend, 1, 10);
  s.post(WrOpcode::kSend, 2, 600);
  s.out();
  s.wait_for_timer();
  s.acknowledge(1001, wire::ack(1));  // acknowledges a part of the second message
  EXPECT_EQ(s.out(), (Lines{"SEND_MIDDLE 1002 256 A", "SEND_LAST 1003 88 A"}));
  s.wait_for_timer();
  s.acknowledge(1003, wire::ack(2));
  s.post(WrOpcode::kSend, 3, 10);
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1004 10 A"});
  EXPECT_EQ(text(s.host.poll()), "1 2");
}

TEST(Requester, GivesUpAfterItsRetriesAndFlushesInOrder) {
  HostUnderTest s({.timeout = 12, .retry_count = 2});
  s.receive(100, 10);
  s.receive(101, 10);
  for (std::uint64_t id = 1; id <= 3; ++id) s.post(WrOpcode::kSend, id, 10);
  for (int sends = 0; sends < 3; ++sends) {
    EXPECT_EQ(s.out().front(), "SEND_ONLY 1000 10 A");
    s.wait_for_timer();
  }
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_EQ(text(s.host.poll()), "1:retries exceeded 2:flushed 3:flushed 100:flushed 101:flushed");
  EXPECT_EQ(s.state(), QpState::kError);
  // Later posts are flushed as well.
  s.post(WrOpcode::kSend, 4, 10);
  s.receive(102, 10);
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_EQ(text(s.host.poll()), "4:flushed 102:flushed");
  s.receive(103, 10);
  EXPECT_TRUE(s.host.engine.has_work());
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_EQ(text(s.host.poll()), "103:flushed");
}

// NAKs show that the peer is alive, so the QP must not fail before the time of all its timeouts.
TEST(Requester, NaksAloneDoNotExhaustTheRetries) {
  HostUnderTest s({.timeout = 12, .retry_count = 2});
  const Time begun = s.now;
  s.post(WrOpcode::kSend, 1, 10);
  for (int naks = 0; naks < 20; ++naks) {
    EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1000 10 A"});
    s.now += std::chrono::microseconds(10);
    s.acknowledge(1000, wire::nak(0, NakCode::kPsnSequenceError));
  }
  s.out();
  EXPECT_EQ(s.state(), QpState::kRts);
  while (s.state() == QpState::kRts) {
    s.wait_for_timer();
    s.out();
  }
  EXPECT_EQ(text(s.host.poll()), "1:retries exceeded");
  EXPECT_GE(s.now - begun, 3 * timeout_of_code(12));
  EXPECT_LT(s.now - begun, 4 * timeout_of_code(12));
}

TEST(Requester, AFailureIsReportedWithItsPeerAndTries) {
  HostUnderTest s({.timeout = 12, .retry_count = 2});
  const Time begun = s.now;
  s.post(WrOpcode::kWrite, 1, 10);
  for (int sends = 0; sends < 3; ++sends) {
    s.out();
    s.wait_for_timer();
  }
  EXPECT_EQ(text(s.host.poll()), "1:retries exceeded");
  const auto failure = s.host.engine.poll_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->qpn, Qpn{0x11});
  EXPECT_EQ(failure->destination_qpn, Qpn{0x22});
  EXPECT_EQ(failure->destination, gid_of(2));
  EXPECT_EQ(failure->status, WcStatus::kRetryExceeded);
  EXPECT_EQ(failure->opcode, WrOpcode::kWrite);
  EXPECT_EQ(failure->tries, 3u);
  EXPECT_EQ(failure->since, begun);
  EXPECT_FALSE(s.host.engine.poll_failure());  // flushed requests are not reported
}

// Messages to the user must not report tries or a time for a packet that was never sent.
TEST(Requester, AFailureOfARequestThatWasNeverSentHasZeroTries) {
  HostUnderTest s({.timeout = 12, .retry_count = 2});
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  s.acknowledge(1000, wire::ack(1));
  EXPECT_EQ(text(s.host.poll()), "1");
  ASSERT_TRUE(s.host.engine.deregister_mr(s.host.mr.handle));
  s.post(WrOpcode::kRead, 2, 10);
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_EQ(text(s.host.poll()), "2:local protection error");
  const auto failure = s.host.engine.poll_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->tries, 0u);
}

static_assert(saturated_length(0xffffffff) == 0xffffffff &&
              saturated_length(1ull << 32) == 0xffffffff);

// A request whose elements have 2^32 bytes in total must not be treated as an empty request.
TEST(Requester, AnInvalidLengthFailsTheRequest) {
  struct Case {
    WrOpcode opcode;
    std::vector<std::uint32_t> lengths;
  };
  const std::vector<Case> cases{{WrOpcode::kSend, {0x8000'0000, 0x8000'0000}},
                                {WrOpcode::kWrite, {0x8000'0000, 1}},
                                {WrOpcode::kRead, {0xffff'ffff, 0xffff'ffff, 2}},
                                {WrOpcode::kFetchAdd, {7}},
                                {WrOpcode::kAtomicWrite, {9}}};
  for (const Case& test_case : cases) {
    Host h(1);
    const QpHandle qp = create_connected_qp(h, {}, Qpn{0x11});
    bring_to_state(h, qp, attributes_for(h, h, {}, Qpn{0x22}, Psn{1}, Psn{2}), QpState::kRts);
    std::vector<Sge> sges;
    for (const std::uint32_t length : test_case.lengths) {
      sges.push_back({.address = h.address(0), .length = length, .lkey = h.mr.lkey});
    }
    ASSERT_TRUE(h.engine.post_send(qp, {.opcode = test_case.opcode, .sges = sges}));
    link::Burst burst;
    while (h.engine.transmit(burst, {})) burst.clear();
    EXPECT_TRUE(burst.empty());
    const auto failure = h.engine.poll_failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->status, WcStatus::kLocalLengthError) << to_string(failure->status);
    EXPECT_EQ(failure->tries, 0u);
  }
}

TEST(Requester, FailuresBeyondTheStoredFailuresAreCounted) {
  Host h(1);
  const std::size_t failures = Shared::kFailuresMax + 2;
  for (std::uint32_t i = 0; i < failures; ++i) {
    const QpHandle qp = create_connected_qp(h, {}, Qpn{0x100 + i});
    bring_to_state(h, qp, attributes_for(h, h, {}, Qpn{0x22}, Psn{1}, Psn{2}), QpState::kRts);
    const Sge nowhere{.length = 1, .lkey = 0};
    ASSERT_TRUE(h.engine.post_send(qp, {.sges = std::span(&nowhere, 1)}));
  }
  link::Burst burst;
  while (h.engine.transmit(burst, {})) burst.clear();
  std::size_t reported = 0;
  while (const auto failure = h.engine.poll_failure()) {
    EXPECT_EQ(failure->status, WcStatus::kLocalProtectionError);
    EXPECT_EQ(failure->qpn, Qpn{0x100 + static_cast<std::uint32_t>(reported++)});
  }
  EXPECT_EQ(reported, Shared::kFailuresMax);
  EXPECT_EQ(h.engine.counters()[Counter::kLimitFailures], failures - Shared::kFailuresMax);
}

TEST(Requester, HasNoDeadlineWithoutATimeout) {
  HostUnderTest s({.timeout = 0});
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  EXPECT_EQ(s.host.engine.deadline(), kNever);
}

TEST(Requester, WaitsForTheTimerOfAnRnrNak) {
  HostUnderTest s;
  s.post(WrOpcode::kSend, 1, 10);
  s.post(WrOpcode::kSend, 2, 10);
  s.out();
  s.acknowledge(1000, wire::rnr_nak(0, 12));
  // Linux sends an additional sequence NAK for each packet after the packet with the RNR NAK.
  for (int i = 0; i < 20; ++i) s.acknowledge(1000, wire::nak(0, NakCode::kPsnSequenceError));
  EXPECT_EQ(s.out(), Lines{});
  const Time begin = s.now;
  while (s.out().empty()) s.wait_for_timer();
  EXPECT_EQ(s.now - begin, std::chrono::microseconds(640));
  s.acknowledge(1001, wire::ack(2));
  EXPECT_EQ(text(s.host.poll()), "1 2");
}

TEST(Requester, CountsRnrRetries) {
  HostUnderTest s({.rnr_retry = 1});
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  s.acknowledge(1000, wire::rnr_nak(0, 1));
  while (s.out().empty()) s.wait_for_timer();
  s.acknowledge(1000, wire::rnr_nak(0, 1));
  EXPECT_EQ(text(s.host.poll()), "1:RNR retries exceeded");
  EXPECT_EQ(s.state(), QpState::kError);
}

TEST(Requester, AnRnrRetryCountOfSevenIsUnlimited) {
  HostUnderTest s({.rnr_retry = 7});
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  for (int i = 0; i < 100; ++i) {
    s.acknowledge(1000, wire::rnr_nak(0, 1));
    while (s.out().empty()) s.wait_for_timer();
  }
  s.acknowledge(1000, wire::ack(1));
  EXPECT_EQ(text(s.host.poll()), "1");
}

TEST(Requester, AnErrorNakFailsTheRequestWithItsStatus) {
  const std::pair<NakCode, const char*> cases[] = {
      {NakCode::kInvalidRequest, "1 2:remote invalid request 3:flushed"},
      {NakCode::kRemoteAccessError, "1 2:remote access error 3:flushed"},
      {NakCode::kRemoteOperationalError, "1 2:remote operation error 3:flushed"}};
  for (const auto& [code, expected] : cases) {
    HostUnderTest s;
    for (std::uint64_t id = 1; id <= 3; ++id) s.post(WrOpcode::kWrite, id, 10);
    s.out();
    s.acknowledge(1001, wire::nak(1, code));
    EXPECT_EQ(text(s.host.poll()), expected);
    EXPECT_EQ(s.state(), QpState::kError);
  }
}

TEST(Requester, IgnoresResponsesWithoutAnOutstandingRequest) {
  HostUnderTest s;
  s.acknowledge(999, wire::nak(0, NakCode::kRemoteAccessError));
  s.acknowledge(1000, wire::ack(1));
  s.post(WrOpcode::kSend, 1, 10);
  s.out();
  s.acknowledge(1001, wire::ack(2));
  s.acknowledge(5000, wire::nak(0, NakCode::kInvalidRequest));
  s.acknowledge(1000, {.syndrome = 0x40});
  s.response(Opcode::kRcReadResponseOnly, 1000, 10);
  EXPECT_EQ(text(s.host.poll()), "");
  EXPECT_EQ(s.state(), QpState::kRts);
  const auto unexpected = [&] {
    return s.host.engine.counters()[Counter::kDropUnexpectedResponse];
  };
  EXPECT_EQ(unexpected(), 6u);
  s.acknowledge(1000, wire::ack(1));
  s.acknowledge(1000, wire::ack(1));
  EXPECT_EQ(text(s.host.poll()), "1");
  // NAKs for acknowledged packets are ignored.
  s.acknowledge(1000, wire::rnr_nak(1, 1));
  s.acknowledge(1000, wire::nak(1, NakCode::kInvalidRequest));
  EXPECT_EQ(unexpected(), 8u);
  EXPECT_EQ(s.state(), QpState::kRts);
}

// ---- READ ---------------------------------------------------------------------------------------

TEST(Requester, SplitsAReadIntoRequestsThatFitTheWindow) {
  HostUnderTest s({.mtu = Mtu::k1024, .rd_atomic = 2});
  s.post(WrOpcode::kRead, 1, 20 * 1024);
  EXPECT_EQ(s.out(), (Lines{"READ 1000 8192 A", "READ 1008 8192 A"}));  // a window of 16 KiB
  for (std::uint32_t i = 0; i < 8; ++i) s.response(Opcode::kRcReadResponseMiddle, 1000 + i, 1024);
  EXPECT_EQ(s.out(), Lines{"READ 1016 4096 A"});
}

TEST(Requester, LimitsOutstandingReadsToMaxRdAtomic) {
  HostUnderTest s({.rd_atomic = 2});
  for (std::uint64_t id = 1; id <= 3; ++id) s.post(WrOpcode::kRead, id, 10);
  s.post(WrOpcode::kSend, 4, 1);
  EXPECT_EQ(s.out(), (Lines{"READ 1000 10 A", "READ 1001 10 A"}));
  s.response(Opcode::kRcReadResponseOnly, 1000, 10);
  EXPECT_EQ(s.out(), (Lines{"READ 1002 10 A", "SEND_ONLY 1003 1 A"}));
  s.response(Opcode::kRcReadResponseOnly, 1001, 10);
  s.response(Opcode::kRcReadResponseOnly, 1002, 10);
  s.acknowledge(1003, wire::ack(4));
  EXPECT_EQ(text(s.host.poll()), "1 2 3 4");
}

TEST(Requester, AReadWithAnInitiatorDepthOfZeroFails) {
  HostUnderTest s({.rd_atomic = 0});
  s.post(WrOpcode::kRead, 1, 10);
  s.out();
  EXPECT_EQ(text(s.host.poll()), "1:local QP operation error");
}

TEST(Requester, AFenceWaitsForReads) {
  HostUnderTest s;
  s.post(WrOpcode::kRead, 1, 10);
  s.post(WrOpcode::kSend, 2, 10, send_flag::kFence);
  EXPECT_EQ(s.out(), Lines{"READ 1000 10 A"});
  s.response(Opcode::kRcReadResponseOnly, 1000, 10);
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1001 10 A"});
}

TEST(Requester, RequestsAMissingReadResponseOncePerGap) {
  HostUnderTest s({.mtu = Mtu::k256});
  s.post(WrOpcode::kRead, 1, 1000);
  EXPECT_EQ(s.out(), Lines{"READ 1000 1000 A"});
  s.response(Opcode::kRcReadResponseFirst, 1000, 256, std::byte{1});
  s.response(Opcode::kRcReadResponseMiddle, 1002, 256);
  EXPECT_EQ(s.out(), Lines{"READ 1001 744 A"});
  s.response(Opcode::kRcReadResponseLast, 1003, 232);
  EXPECT_EQ(s.out(), Lines{});
  // The peer answers the new request as the specification requires.
  s.response(Opcode::kRcReadResponseFirst, 1001, 256, std::byte{2});
  s.response(Opcode::kRcReadResponseMiddle, 1002, 256, std::byte{3});
  s.response(Opcode::kRcReadResponseLast, 1003, 232, std::byte{4});
  EXPECT_EQ(text(s.host.poll()), "1");
  EXPECT_EQ(s.host.memory[255], std::byte{1});
  EXPECT_EQ(s.host.memory[256], std::byte{2});
  EXPECT_EQ(s.host.memory[767], std::byte{3});
  EXPECT_EQ(s.host.memory[999], std::byte{4});
}

TEST(Requester, AcceptsAResumedReadResponseWithoutAFirstPacket) {
  HostUnderTest s({.mtu = Mtu::k256});
  s.post(WrOpcode::kRead, 1, 1000);
  s.out();
  s.response(Opcode::kRcReadResponseFirst, 1000, 256);
  s.wait_for_timer();
  EXPECT_EQ(s.out(), Lines{"READ 1001 744 A"});
  s.response(Opcode::kRcReadResponseMiddle, 1001, 256);
  s.response(Opcode::kRcReadResponseMiddle, 1002, 256);
  s.response(Opcode::kRcReadResponseLast, 1003, 232);
  EXPECT_EQ(text(s.host.poll()), "1");
}

TEST(Requester, AnAckOfALaterRequestRevealsALostRead) {
  HostUnderTest s;
  s.post(WrOpcode::kSend, 1, 10);
  s.post(WrOpcode::kRead, 2, 10);
  s.post(WrOpcode::kSend, 3, 10);
  s.out();
  s.acknowledge(1002, wire::ack(3));
  EXPECT_EQ(text(s.host.poll()), "1");
  EXPECT_EQ(s.out(), (Lines{"READ 1001 10 A", "SEND_ONLY 1002 10 A"}));
  s.response(Opcode::kRcReadResponseOnly, 1001, 10);
  s.acknowledge(1002, wire::ack(3));
  EXPECT_EQ(text(s.host.poll()), "2 3");
}

TEST(Requester, ARepeatedReadRequestKeepsItsEnd) {
  HostUnderTest s({.mtu = Mtu::k1024, .rd_atomic = 2});
  s.post(WrOpcode::kRead, 1, 16 * 1024);
  EXPECT_EQ(s.out(), (Lines{"READ 1000 8192 A", "READ 1008 8192 A"}));
  for (std::uint32_t i = 0; i < 6; ++i) s.response(Opcode::kRcReadResponseMiddle, 1000 + i, 1024);
  s.wait_for_timer();  // the window is 2 packets now, so the second chunk does not fit
  EXPECT_EQ(s.out(), Lines{"READ 1006 2048 A"});
  s.response(Opcode::kRcReadResponseFirst, 1006, 1024);
  s.response(Opcode::kRcReadResponseLast, 1007, 1024);
  EXPECT_EQ(s.out(), Lines{"READ 1008 8192 A"});
}

TEST(Requester, AResponseOfTheWrongLengthEndsTheQp) {
  HostUnderTest s({.mtu = Mtu::k256});
  s.post(WrOpcode::kRead, 1, 1000);
  s.out();
  s.response(Opcode::kRcReadResponseFirst, 1000, 252);
  EXPECT_EQ(text(s.host.poll()), "1:bad response");
}

// ---- invalid requests ---------------------------------------------------------------------------

TEST(Requester, ABadKeyFailsAfterTheEarlierRequestsComplete) {
  HostUnderTest s;
  s.post(WrOpcode::kSend, 1, 10);
  const Sge bad = {s.host.address(0), 10, s.host.mr.lkey ^ 1};
  ASSERT_TRUE(s.host.engine.post_send(s.qp, {.wr_id = 2, .sges = {&bad, 1}}));
  s.post(WrOpcode::kSend, 3, 10);
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1000 10 A"});
  EXPECT_EQ(text(s.host.poll()), "");
  s.acknowledge(1000, wire::ack(1));
  s.out();
  EXPECT_EQ(text(s.host.poll()), "1 2:local protection error 3:flushed");
}

TEST(Requester, DeregisteredMemoryIsNotAccessed) {
  HostUnderTest s({.mtu = Mtu::k1024});
  s.post(WrOpcode::kWrite, 1, 100 * 1024);
  EXPECT_EQ(s.out().size(), 16u);
  ASSERT_TRUE(s.host.engine.deregister_mr(s.host.mr.handle));
  s.acknowledge(1003, wire::ack(0));
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_EQ(text(s.host.poll()), "1:local protection error");
}

TEST(Requester, AMessageOfMoreThan2GiBFails) {
  HostUnderTest s;
  const Sge half = {s.host.address(0), 0x80000000u, s.host.mr.lkey};
  const Sge both[] = {half, half};
  ASSERT_TRUE(
      s.host.engine.post_send(s.qp, {.wr_id = 1, .opcode = WrOpcode::kWrite, .sges = both}));
  s.out();
  EXPECT_EQ(text(s.host.poll()), "1:local length error");
}

TEST(Requester, PsnsWrapInTheMiddleOfAMessage) {
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kWrite, WrOpcode::kRead}) {
    Pair p({.mtu = Mtu::k256, .psn_a = Psn{0xffffff - 20}, .psn_b = Psn{0xffffff}});
    p.a.fill(0, 20000, 3);
    if (opcode == WrOpcode::kRead) p.b.fill(kTargetOffset, 20000, 4);
    ASSERT_TRUE(p.receive(5, kTargetOffset, 20000));
    ASSERT_TRUE(p.rdma(opcode, 1, 0, kTargetOffset, 20000));
    Random random(7);
    p.wire.faults = [&](auto, auto) {
      return PacketOutcome{.copies = random.chance({1, 9}) ? 0u : 1u};
    };
    p.wire.run();
    EXPECT_EQ(text(p.a.poll()), "1");
    EXPECT_TRUE(p.same(0, kTargetOffset, 20000));
  }
}

TEST(Requester, SqdFinishesStartedRequestsAndRaisesItsEvent) {
  HostUnderTest s({.mtu = Mtu::k256});
  s.post(WrOpcode::kSend, 1, 500);
  s.out();
  QpAttributes a;
  a.state = QpState::kSqd;
  a.sqd_notify = true;
  ASSERT_TRUE(s.host.engine.modify_qp(s.qp, a, attribute::kState | attribute::kSqdNotify, s.now));
  s.post(WrOpcode::kSend, 2, 10);
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_TRUE(s.host.events().empty());
  EXPECT_TRUE(s.host.engine.query_qp(s.qp)->sq_draining);
  s.acknowledge(1001, wire::ack(1));
  EXPECT_FALSE(s.host.engine.query_qp(s.qp)->sq_draining);
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_EQ(s.host.events(),
            (std::vector<Event>{QpEvent{s.qp, 500 + 0x11, Qpn{0x11}, QpEvent::Kind::kSqDrained}}));
  a.state = QpState::kRts;
  ASSERT_TRUE(s.host.engine.modify_qp(s.qp, a, attribute::kState, s.now));
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1002 10 A"});
}

// ---- a faulty wire ------------------------------------------------------------------------------

// Runs requests of several kinds, and checks their results.  `fate` returns the fate of each
// packet.  Sets `*packets` to the number of packets.
void exchange(const std::function<PacketOutcome(std::uint64_t)>& fate, std::uint64_t* packets) {
  Pair p({.mtu = Mtu::k256, .rd_atomic = 2});
  p.a.fill(0, 4000, 3);
  p.b.fill(kTargetOffset + 10000, 3000, 4);
  ASSERT_TRUE(p.receive(11, kTargetOffset, 700));
  ASSERT_TRUE(p.receive(12, kTargetOffset, 0));
  ASSERT_TRUE(p.send(1, 0, 700));
  ASSERT_TRUE(p.rdma(WrOpcode::kRead, 2, 10000, kTargetOffset + 10000, 1500));
  ASSERT_TRUE(p.rdma(WrOpcode::kWriteImm, 3, 1000, kTargetOffset + 1000, 900));
  ASSERT_TRUE(p.rdma(WrOpcode::kRead, 4, 11500, kTargetOffset + 11500, 300));
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 5, 2000, kTargetOffset + 2000, 10));
  p.wire.faults = [&](std::uint64_t number, auto) { return fate(number); };
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1 2 3 4 5");
  EXPECT_EQ(text(p.b.poll()), "11 12");
  EXPECT_TRUE(p.same(0, kTargetOffset, 700));
  EXPECT_TRUE(p.same(1000, kTargetOffset + 1000, 900));
  EXPECT_TRUE(p.same(2000, kTargetOffset + 2000, 10));
  EXPECT_TRUE(p.same(10000, kTargetOffset + 10000, 1800));
  *packets = p.wire.count;
}

TEST(Requester, SurvivesTheLossOfEachSinglePacket) {
  std::uint64_t packets = 0;
  exchange([](auto) { return PacketOutcome{}; }, &packets);
  ASSERT_GT(packets, 15u);
  for (std::uint64_t lost = 0, ignored = 0; lost < packets; ++lost) {
    SCOPED_TRACE(::testing::Message() << "packet " << lost << " is lost");
    exchange([lost](std::uint64_t n) { return PacketOutcome{.copies = n == lost ? 0u : 1u}; },
             &ignored);
  }
}

TEST(Requester, SurvivesTheLossOfEachPairOfPackets) {
  std::uint64_t packets = 0;
  exchange([](auto) { return PacketOutcome{}; }, &packets);
  for (std::uint64_t first = 0; first < packets; ++first) {
    for (std::uint64_t second = first + 1; second < packets + 8; ++second) {
      SCOPED_TRACE(::testing::Message() << "packets " << first << " and " << second << " are lost");
      std::uint64_t ignored = 0;
      exchange(
          [&](std::uint64_t n) {
            return PacketOutcome{.copies = n == first || n == second ? 0u : 1u};
          },
          &ignored);
    }
  }
}

TEST(Requester, SurvivesTheDuplicationAndDelayOfEachSinglePacket) {
  std::uint64_t packets = 0;
  exchange([](auto) { return PacketOutcome{}; }, &packets);
  for (std::uint64_t bad = 0, ignored = 0; bad < packets; ++bad) {
    for (const int late_us : {0, 1, 20, 300}) {
      SCOPED_TRACE(::testing::Message() << "packet " << bad << ", " << late_us << " us late");
      exchange(
          [&](std::uint64_t n) {
            return n == bad
                       ? PacketOutcome{.copies = 2, .delay = std::chrono::microseconds(late_us)}
                       : PacketOutcome{};
          },
          &ignored);
      exchange(
          [&](std::uint64_t n) {
            return n == bad
                       ? PacketOutcome{.copies = 1, .delay = std::chrono::microseconds(late_us)}
                       : PacketOutcome{};
          },
          &ignored);
    }
  }
}

TEST(Requester, ALossIsRepairedWithoutTheTimerWhenMorePacketsFollow) {
  for (const WrOpcode opcode : {WrOpcode::kWrite, WrOpcode::kRead}) {
    Pair p({.mtu = Mtu::k1024});
    p.a.fill(0, 300000, 3);
    ASSERT_TRUE(p.rdma(opcode, 1, 0, kTargetOffset, 300000));
    p.wire.faults = [](std::uint64_t n, auto) {
      return PacketOutcome{.copies = n == 25 ? 0u : 1u};
    };
    const Time begin = p.wire.now;
    p.wire.run(std::chrono::milliseconds(5));
    EXPECT_EQ(text(p.a.poll()), "1");
    EXPECT_LE(p.wire.now - begin, std::chrono::milliseconds(5));
    EXPECT_EQ(p.a.engine.counters()[Counter::kTimeouts], 0u);
  }
}

}  // namespace
}  // namespace verbena::hca
