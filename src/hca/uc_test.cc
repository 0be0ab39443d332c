#include "hca/uc.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;
using Lines = std::vector<std::string>;
using wire::Opcode;

Options uc_options(Mtu mtu = Mtu::k256) { return {.mtu = mtu, .type = QpType::kUc}; }

TEST(UcTransport, CarriesMessagesAndCompletesThemAtOnce) {
  Pair p(uc_options());
  p.a.fill(0, 1000, 9);
  for (std::uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(p.receive(id, 4096 * id, 1000));
  ASSERT_TRUE(p.send(1, 0, 600));
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 2, 0, 20'000, 1000));
  ASSERT_TRUE(p.rdma(WrOpcode::kWriteImm, 3, 0, 30'000, 256));
  p.wire.keep_log = true;
  p.wire.drain(p.a);
  EXPECT_EQ(p.wire.log, (Lines{"1: SEND_FIRST 1000 256", "1: SEND_MIDDLE 1001 256",
                               "1: SEND_LAST 1002 88", "1: WRITE_FIRST 1003 256",
                               "1: WRITE_MIDDLE 1004 256", "1: WRITE_MIDDLE 1005 256",
                               "1: WRITE_LAST 1006 232", "1: WRITE_ONLY_IMM 1007 256"}));
  const auto sent = p.a.poll();
  EXPECT_EQ(text(sent), "1 2 3");
  EXPECT_EQ(sent[1].opcode, WcOpcode::kWrite);
  p.wire.run();
  EXPECT_EQ(p.wire.log.size(), 8u);  // host b has sent no packet
  const auto got = p.b.poll();
  ASSERT_EQ(text(got), "1 2");
  EXPECT_EQ(got[0].byte_len, 600u);
  EXPECT_EQ(got[1].opcode, WcOpcode::kReceiveWriteImm);
  EXPECT_EQ(got[1].immediate, 0x12345678u);
  EXPECT_EQ(got[1].byte_len, 256u);
  EXPECT_TRUE(p.same(0, 4096, 600));
  EXPECT_TRUE(p.same(0, 20'000, 1000));
  EXPECT_TRUE(p.same(0, 30'000, 256));
  EXPECT_EQ(p.a.engine.deadline(), kNever);
}

struct UcReceiver : HostUnderTest {
  explicit UcReceiver(Options options = uc_options()) : HostUnderTest(options) {
    host.engine.mark_established(qp).value();
  }
  // Delivers a packet of the peer.
  void deliver_packet(Opcode opcode, std::uint32_t psn, std::size_t bytes, std::size_t at = 1024,
                      std::uint32_t length = 0) {
    request(opcode, psn, bytes, false, {host.address(at), host.mr.rkey, length});
  }
  std::uint64_t count(Counter counter) const { return host.engine.counters()[counter]; }
};

TEST(UcTransport, AGapDropsOnlyTheCurrentMessage) {
  UcReceiver b;
  for (std::uint64_t id = 1; id <= 3; ++id) b.receive(id, 2000);
  b.deliver_packet(Opcode::kUcSendFirst, 2000, 256);
  b.deliver_packet(Opcode::kUcSendLast, 2002, 10);  // 2001 is lost
  b.deliver_packet(Opcode::kUcSendOnly, 2003, 10);
  EXPECT_EQ(b.out(), Lines{});
  auto got = b.host.poll();
  ASSERT_EQ(text(got), "1");  // the next message uses the receive of the lost message
  EXPECT_EQ(got[0].byte_len, 10u);
  EXPECT_EQ(b.count(Counter::kDropGap), 1u);
  // The first packets of a message are lost, so its other packets are dropped.
  b.deliver_packet(Opcode::kUcSendMiddle, 2010, 256);
  b.deliver_packet(Opcode::kUcSendLast, 2011, 10);
  b.deliver_packet(Opcode::kUcSendFirst, 2020, 256);
  b.deliver_packet(Opcode::kUcSendLast, 2021, 10);
  got = b.host.poll();
  ASSERT_EQ(text(got), "2");
  EXPECT_EQ(got[0].byte_len, 266u);
  // The end of a message is lost, and the next message starts normally.
  b.deliver_packet(Opcode::kUcSendFirst, 2022, 256);
  b.deliver_packet(Opcode::kUcSendOnly, 2024, 10);
  EXPECT_EQ(text(b.host.poll()), "3");
  EXPECT_EQ(b.host.engine.query_qp(b.qp)->attributes.rq_psn, Psn{2025});
  EXPECT_EQ(b.state(), QpState::kRts);
  EXPECT_EQ(b.host.events(), std::vector<Event>{});
}

TEST(UcTransport, AWriteWithAGapKeepsTheBytesBeforeTheGap) {
  UcReceiver b;
  b.receive(1, 0);
  b.deliver_packet(Opcode::kUcWriteFirst, 2000, 256, 1024, 768);
  b.deliver_packet(Opcode::kUcWriteLastImm, 2002, 256);
  EXPECT_EQ(b.host.memory[1024 + 255], std::byte{0x5a});
  EXPECT_EQ(b.host.memory[1024 + 256], std::byte{0});
  EXPECT_EQ(text(b.host.poll()), "");
  b.deliver_packet(Opcode::kUcWriteOnlyImm, 2003, 4, 4096, 4);
  EXPECT_EQ(text(b.host.poll()), "1");
}

// The receiver sends no NAK and raises no event, and its QP remains in RTS (vol1 9.9.3: class D).
TEST(UcTransport, DropsInvalidRequestsSilently) {
  struct Case {
    const char* what;
    Opcode opcode;
    std::size_t bytes;
    std::uint32_t length;
    std::uint32_t key;
    Counter counter;
  };
  for (const Case& c :
       {Case{"a wrong key", Opcode::kUcWriteOnly, 8, 8, 1, Counter::kDropRefused},
        Case{"too short", Opcode::kUcWriteOnly, 8, 9, 0, Counter::kDropRefused},
        Case{"too long", Opcode::kUcWriteOnly, 8, 7, 0, Counter::kDropRefused},
        Case{"over 2 GiB", Opcode::kUcWriteFirst, 256, 0x80000001, 0, Counter::kDropRefused},
        Case{"a FIRST not full", Opcode::kUcSendFirst, 255, 0, 0, Counter::kDropRefused},
        Case{"an ONLY too full", Opcode::kUcSendOnly, 257, 0, 0, Counter::kDropRefused},
        Case{"a LAST alone", Opcode::kUcSendLast, 8, 0, 0, Counter::kDropGap},
        Case{"no receive", Opcode::kUcSendOnly, 8, 0, 0, Counter::kDropNoReceive},
        Case{"no receive for an immediate", Opcode::kUcWriteOnlyImm, 8, 8, 0,
             Counter::kDropNoReceive}}) {
    SCOPED_TRACE(c.what);
    UcReceiver b;
    b.request(c.opcode, 2000, c.bytes, true,
              {b.host.address(1024), b.host.mr.rkey + c.key, c.length});
    EXPECT_EQ(b.out(), Lines{});
    EXPECT_EQ(b.count(c.counter), 1u);
    EXPECT_EQ(b.state(), QpState::kRts);
    EXPECT_EQ(b.host.memory[1024], std::byte{0});
    EXPECT_EQ(b.host.events(), std::vector<Event>{});
    b.receive(1, 100);
    b.deliver_packet(Opcode::kUcSendOnly, 2001, 10);
    EXPECT_EQ(text(b.host.poll()), "1");
  }
}

TEST(UcTransport, WritesNeedTheQpsRemoteWriteRight) {
  UcReceiver b;
  QpAttributes a;
  a.access_flags = access::kRemoteRead;
  ASSERT_TRUE(b.host.engine.modify_qp(b.qp, a, attribute::kAccessFlags, b.now));
  b.deliver_packet(Opcode::kUcWriteOnly, 2000, 8, 1024, 8);
  EXPECT_EQ(b.count(Counter::kDropRefused), 1u);
  EXPECT_EQ(b.host.memory[1024], std::byte{0});
}

TEST(UcTransport, DropsATooLongMessageAndKeepsTheReceive) {
  UcReceiver b;
  b.receive(1, 300);
  b.deliver_packet(Opcode::kUcSendFirst, 2000, 256);
  b.deliver_packet(Opcode::kUcSendMiddle, 2001, 256);
  b.deliver_packet(Opcode::kUcSendLast, 2002, 10);
  EXPECT_EQ(b.count(Counter::kDropTooLong), 1u);
  EXPECT_EQ(text(b.host.poll()), "");
  b.deliver_packet(Opcode::kUcSendOnly, 2003, 256);
  EXPECT_EQ(text(b.host.poll()), "1");
}

TEST(UcTransport, AReceiveWithABadKeyEndsTheQp) {
  UcReceiver b;
  const Sge bad{b.host.address(0), 100, b.host.mr.lkey + 1};
  ASSERT_TRUE(b.host.engine.post_recv(b.qp, {.wr_id = 1, .sges = {&bad, 1}}));
  b.deliver_packet(Opcode::kUcSendOnly, 2000, 10);
  EXPECT_EQ(text(b.host.poll()), "1:local protection error");
  EXPECT_EQ(b.state(), QpState::kError);
  EXPECT_EQ(b.out(), Lines{});
}

TEST(UcTransport, TheFirstPacketRaisesCommunicationEstablished) {
  HostUnderTest b(uc_options(), QpState::kRtr);
  b.request(Opcode::kUcSendOnly, 2000, 0);
  b.request(Opcode::kUcSendOnly, 2001, 0);
  EXPECT_EQ(b.host.events(),
            (std::vector<Event>{QpEvent{b.qp, 500 + 0x11, Qpn{0x11}, QpEvent::Kind::kCommEst}}));
}

TEST(UcTransport, DropsPacketsOfOtherTransports) {
  UcReceiver b;
  b.receive(1, 100);
  b.deliver_packet(Opcode::kRcSendOnly, 2000, 8);
  EXPECT_EQ(b.count(Counter::kDropWrongTransport), 1u);
  EXPECT_EQ(text(b.host.poll()), "");
}

TEST(UcTransport, AFailedSendStopsOnlyTheSendQueue) {
  HostUnderTest s(uc_options());
  const Sge bad{s.host.address(0), 8, s.host.mr.lkey + 1};
  ASSERT_TRUE(s.host.engine.post_send(s.qp, {.wr_id = 1, .sges = {&bad, 1}}));
  s.post(WrOpcode::kSend, 2, 10);
  s.receive(3, 100);
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_EQ(text(s.host.poll()), "1:local protection error 2:flushed");
  EXPECT_EQ(s.state(), QpState::kSqe);
  s.request(Opcode::kUcSendOnly, 2000, 5);
  EXPECT_EQ(text(s.host.poll()), "3");
  QpAttributes a;
  a.state = QpState::kRts;
  ASSERT_TRUE(s.host.engine.modify_qp(s.qp, a, attribute::kState, s.now));
  s.post(WrOpcode::kSend, 4, 10);
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY 1000 10"});
}

TEST(UcTransport, ACqOverflowStopsTheSendQueueAndFlushesEachSendOnce) {
  HostUnderTest s(uc_options());
  s.host.engine.resize_cq(s.host.cq, 2).value();
  for (std::uint64_t id = 1; id <= 6; ++id) s.post(WrOpcode::kSend, id, 10);
  EXPECT_EQ(s.out().size(), 6u);
  EXPECT_EQ(s.state(), QpState::kSqe);
  EXPECT_EQ(text(s.host.poll()), "1 2");
  s.post(WrOpcode::kSend, 7, 10);
  EXPECT_EQ(s.out(), Lines{});
  EXPECT_EQ(text(s.host.poll()), "7:flushed");
}

TEST(UcTransport, RefusesReadsAtomicsAndSendWithInvalidate) {
  HostUnderTest s(uc_options());
  for (const WrOpcode opcode : {WrOpcode::kRead, WrOpcode::kCompareSwap, WrOpcode::kFetchAdd,
                                WrOpcode::kSendInvalidate, WrOpcode::kAtomicWrite}) {
    EXPECT_EQ(s.host.engine.post_send(s.qp, {.opcode = opcode}).error().code,
              Errc::kInvalidArgument);
  }
}

TEST(UcTransport, BindsAndInvalidatesWindows) {
  Pair p(uc_options());
  const MrInfo region = p.b.engine
                            .register_mr(p.b.pd, p.b.address(0), 4096, p.b.address(0),
                                         access::kLocalWrite | access::kWindowBind)
                            .value();
  const MwInfo window = p.b.engine.create_mw(p.b.pd, WindowType::kTwo).value();
  ASSERT_TRUE(p.b.engine.post_send(p.qb, {.wr_id = 1,
                                          .opcode = WrOpcode::kBindWindow,
                                          .flags = send_flag::kSignaled,
                                          .r_key = window.rkey,
                                          .bind = {.address = p.b.address(0),
                                                   .length = 4096,
                                                   .lkey = region.lkey,
                                                   .access_flags = access::kRemoteWrite}}));
  p.a.fill(0, 100, 3);
  const Sge sge = p.a.sge(0, 100);
  ASSERT_TRUE(p.a.engine.post_send(p.qa, {.opcode = WrOpcode::kWrite,
                                          .sges = {&sge, 1},
                                          .remote_address = p.b.address(0),
                                          .r_key = window.rkey}));
  p.wire.run();
  EXPECT_TRUE(p.same(0, 0, 100));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(p.b.engine.post_send(p.qb, {.wr_id = 2,
                                            .opcode = WrOpcode::kLocalInvalidate,
                                            .flags = send_flag::kSignaled,
                                            .r_key = window.rkey}));
  }
  p.wire.run();
  EXPECT_EQ(text(p.b.poll()), "1 2 2:memory management operation error");
}

TEST(UcTransport, SqdFinishesTheStartedMessageAndStartsNoOther) {
  constexpr std::size_t kPackets = 2 * link::Burst::kPacketsMax;
  HostUnderTest s(uc_options());
  s.post(WrOpcode::kWrite, 1, 256 * kPackets);
  s.post(WrOpcode::kSend, 2, 10);
  link::Burst burst;
  s.host.engine.transmit(burst, s.now);
  ASSERT_LT(burst.size(), kPackets);
  QpAttributes a;
  a.state = QpState::kSqd;
  a.sqd_notify = true;
  ASSERT_TRUE(s.host.engine.modify_qp(s.qp, a, attribute::kState | attribute::kSqdNotify, s.now));
  EXPECT_EQ(s.host.events(), std::vector<Event>{});
  EXPECT_EQ(burst.size() + s.out().size(), kPackets);  // the packets of the started message
  EXPECT_EQ(s.host.events(),
            (std::vector<Event>{QpEvent{s.qp, 500 + 0x11, Qpn{0x11}, QpEvent::Kind::kSqDrained}}));
  EXPECT_EQ(text(s.host.poll()), "1");
  a.state = QpState::kRts;
  ASSERT_TRUE(s.host.engine.modify_qp(s.qp, a, attribute::kState, s.now));
  EXPECT_EQ(s.out(), Lines{"SEND_ONLY " + std::to_string(1000 + kPackets) + " 10"});
}

// Repeats a series of messages.  Each run loses another packet, which drops only the message of
// this packet.  The other messages arrive complete.
TEST(UcTransport, ALostPacketDropsOnlyItsMessage) {
  constexpr std::size_t kMessages = 4, kBytes = 700, kPackets = 3;
  for (std::uint64_t lost = 0; lost < kMessages * kPackets; ++lost) {
    SCOPED_TRACE(lost);
    Pair p(uc_options());
    p.wire.faults = [lost](std::uint64_t number, auto) {
      return PacketOutcome{.copies = number != lost};
    };
    for (std::size_t i = 0; i < kMessages; ++i) {
      p.a.fill(i * 1024, kBytes, static_cast<std::uint8_t>(i));
      ASSERT_TRUE(p.receive(i, i * 1024, 1024));
      ASSERT_TRUE(p.send(i, i * 1024, kBytes));
    }
    p.wire.run();
    EXPECT_EQ(text(p.a.poll()), "0 1 2 3");
    EXPECT_EQ(text(p.b.poll()), "0 1 2");
    for (std::size_t i = 0, message = 0; i + 1 < kMessages; ++i, ++message) {
      if (message == lost / kPackets) ++message;
      EXPECT_TRUE(p.same(message * 1024, i * 1024, kBytes));
    }
  }
}

// Losses, duplicates and delays may drop a message or deliver it twice, but each message that
// arrives is complete.  The immediate data identify the message.
TEST(UcTransport, EachReceivedMessageIsComplete) {
  constexpr std::size_t kMessages = 40, kSlot = 2048;
  std::size_t arrived = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Pair p(uc_options());
    p.wire.faults = [&random](auto, auto) {
      if (random.chance({1, 20})) return PacketOutcome{.copies = 0};
      return PacketOutcome{
          .copies = random.chance({1, 20}) ? 2u : 1u,
          .delay = random.chance({1, 20}) ? Duration(random.below(20'000)) : Duration{}};
    };
    std::vector<std::uint32_t> sizes;
    for (std::size_t i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(p.receive(i, 1'000'000 + i * kSlot, kSlot));
      p.a.fill(i * kSlot, kSlot, static_cast<std::uint8_t>(i * 11));
      sizes.push_back(static_cast<std::uint32_t>(random.below(kSlot)));
      const Sge sge = p.a.sge(i * kSlot, sizes[i]);
      ASSERT_TRUE(p.a.engine.post_send(p.qa, {.wr_id = i,
                                              .opcode = WrOpcode::kSendImm,
                                              .flags = send_flag::kSignaled,
                                              .sges = {&sge, 1},
                                              .immediate = static_cast<std::uint32_t>(i)}));
      p.wire.run(Duration(random.below(20'000)));
    }
    p.wire.run();
    EXPECT_EQ(p.a.poll().size(), kMessages);
    for (const WorkCompletion& wc : p.b.poll()) {
      ASSERT_EQ(wc.status, WcStatus::kSuccess);
      ASSERT_LT(wc.immediate, kMessages);
      EXPECT_EQ(wc.byte_len, sizes[wc.immediate]);
      EXPECT_TRUE(p.same(wc.immediate * kSlot, 1'000'000 + wc.wr_id * kSlot, wc.byte_len));
      ++arrived;
    }
    EXPECT_EQ(p.state_b(), QpState::kRts);
  }
  EXPECT_GT(arrived, 100 * kMessages / 2);
}

TEST(UcTransport, ASendCompletesWhenItsBurstIsSent) {
  Pair p(uc_options());
  p.receive(7, 0, 3000).value();
  p.send(1, 0, 3000).value();  // twelve packets
  p.send(2, 0, 1).value();
  link::Burst burst;
  EXPECT_TRUE(p.a.engine.transmit(burst, p.wire.now));
  EXPECT_EQ(burst.packets().size(), 13u);
  EXPECT_EQ(text(p.a.poll()), "");
  burst.clear();
  EXPECT_FALSE(p.a.engine.transmit(burst, p.wire.now));
  EXPECT_EQ(text(p.a.poll()), "1 2");
}

}  // namespace
}  // namespace verbena::hca
