#include "hca/srq.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

// Connects host 1 twice to host 2, whose two QPs take receives from one SRQ.
struct TwoQpsOneSrq {
  explicit TwoQpsOneSrq(const Options& options = {.mtu = Mtu::k256, .min_rnr_timer = 1},
                        std::uint32_t max_wr = 64)
      : o(options) {
    wire.attach(a);
    wire.attach(b);
    srq = b.engine.create_srq(b.pd, {.max_wr = max_wr, .max_sge = 4}, 77).value();
    for (unsigned i = 0; i < 2; ++i) {
      const Qpn na{0x11 + i}, nb{0x21 + i};
      qa[i] = create_connected_qp(a, o, na);
      qb[i] = b.engine
                  .create_qp({.type = QpType::kRc,
                              .pd = b.pd,
                              .send_cq = b.cq,
                              .recv_cq = b.cq,
                              .srq = srq,
                              .caps = o.caps,
                              .cookie = 600 + i},
                             nb)
                  .value();
      bring_to_state(a, qa[i], attributes_for(a, b, o, nb, o.psn_a, o.psn_b), QpState::kRts);
      bring_to_state(b, qb[i], attributes_for(b, a, o, na, o.psn_b, o.psn_a), QpState::kRts);
      b.engine.mark_established(qb[i]).value();
    }
  }
  Result<void> receive(std::uint64_t id, std::size_t bytes) {
    const Sge sge = b.sge(0x1000 * id, bytes);
    return b.engine.post_srq_recv(srq, {.wr_id = id, .sges = {&sge, 1}});
  }
  void send(unsigned from, std::uint64_t id, std::size_t bytes) {
    const Sge sge = a.sge(0, bytes);
    a.engine.post_send(qa[from], {.wr_id = id, .flags = send_flag::kSignaled, .sges = {&sge, 1}})
        .value();
  }
  // Runs for the time that one packet needs.
  void step() { wire.run_until(wire.now + kLatency); }
  // Polls both hosts and returns the receiver's completions.
  std::string receiver_completions() {
    a.poll();
    return text(b.poll());
  }
  std::uint32_t limit() const { return b.engine.query_srq(srq).value().limit; }

  Options o;
  Wire wire;
  Host a{1}, b{2};
  SrqHandle srq;
  QpHandle qa[2], qb[2];
};

Event limit_reached(SrqHandle srq) { return SrqLimitReached{srq, 77}; }

TEST(Srq, EachQpTakesTheOldestReceive) {
  TwoQpsOneSrq t;
  for (std::uint64_t id = 1; id <= 3; ++id) t.receive(id, 100).value();
  t.send(0, 10, 40);
  t.wire.run();
  t.send(1, 11, 50);
  t.wire.run();
  t.send(0, 12, 60);
  t.wire.run();
  const auto got = t.b.poll();
  ASSERT_EQ(text(got), "1 2 3");
  EXPECT_EQ(got[0].qpn, Qpn{0x21});
  EXPECT_EQ(got[1].qpn, Qpn{0x22});
  EXPECT_EQ(got[1].byte_len, 50u);
}

TEST(Srq, TheFirstPacketOfAMessageTakesAReceive) {
  TwoQpsOneSrq t;
  t.receive(1, 1000).value();
  t.receive(2, 1000).value();
  t.a.fill(0, 1000, 5);
  // The last packet of the first message is lost, so the second message completes first.
  t.wire.faults = [](std::uint64_t number, auto) {
    return PacketOutcome{.copies = number == 2 ? 0u : 1u};
  };
  t.send(0, 10, 600);
  t.wire.drain(t.a);
  t.send(1, 11, 600);
  t.wire.run();
  const auto got = t.b.poll();
  ASSERT_EQ(text(got), "2 1");
  EXPECT_EQ(got[0].qpn, Qpn{0x22});
  EXPECT_TRUE(
      std::equal(t.a.memory.begin(), t.a.memory.begin() + 600, t.b.memory.begin() + 0x1000));
}

TEST(Srq, AnEmptySrqSendsRnrNaksUntilThereIsAReceive) {
  TwoQpsOneSrq t;
  t.send(0, 10, 40);
  t.wire.run(std::chrono::milliseconds(1));
  EXPECT_EQ(t.receiver_completions(), "");
  EXPECT_GT(t.b.engine.counters()[Counter::kRnrNaksOut], 0u);
  t.receive(1, 100).value();
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "1");
}

TEST(Srq, ImmediateDataOfAWriteTakesAReceiveAtTheEnd) {
  TwoQpsOneSrq t;
  t.receive(1, 0).value();
  const Sge sge = t.a.sge(0, 700);
  t.a.engine
      .post_send(t.qa[0], {.opcode = WrOpcode::kWriteImm,
                           .sges = {&sge, 1},
                           .immediate = 9,
                           .remote_address = t.b.address(0),
                           .r_key = t.b.mr.rkey})
      .value();
  t.wire.run();
  const auto got = t.b.poll();
  ASSERT_EQ(text(got), "1");
  EXPECT_EQ(got[0].opcode, WcOpcode::kReceiveWriteImm);
  EXPECT_EQ(got[0].immediate, 9u);
}

TEST(Srq, AFullSrqHasNoFreeSlotUntilACompletionIsPolled) {
  TwoQpsOneSrq t({.mtu = Mtu::k256}, 64);
  for (std::uint64_t id = 0; id < 64; ++id) t.receive(id, 8).value();
  EXPECT_EQ(t.receive(64, 8).error().code, Errc::kNoResources);
  EXPECT_EQ(t.b.engine.counters()[Counter::kLimitRecvQueue], 1u);
  t.send(0, 1, 8);
  t.wire.run();
  EXPECT_EQ(t.receive(64, 8).error().code, Errc::kNoResources);
  EXPECT_EQ(t.receiver_completions(), "0");
  t.receive(64, 8).value();
  EXPECT_EQ(t.receive(65, 8).error().code, Errc::kNoResources);
}

TEST(Srq, DestroyingAQpFreesTheReceivesThatItHasTaken) {
  TwoQpsOneSrq t;
  for (std::uint64_t id = 0; id < 64; ++id) t.receive(id, 1000).value();
  // One message is complete, but its completion was not polled.  Another message has begun.
  t.send(0, 1, 8);
  t.wire.run();
  t.wire.faults = [](std::uint64_t, auto bytes) {
    return PacketOutcome{.copies = text(bytes).starts_with("SEND_LAST") ? 0u : 1u};
  };
  t.send(0, 2, 600);
  t.step();
  ASSERT_EQ(t.receive(64, 8).error().code, Errc::kNoResources);
  t.b.engine.destroy_qp(t.qb[0]).value();
  t.receive(64, 8).value();
  t.receive(65, 8).value();
  EXPECT_EQ(t.receive(66, 8).error().code, Errc::kNoResources);
}

TEST(Srq, TheLimitEventComesOnceAndDisarmsTheLimit) {
  TwoQpsOneSrq t;
  for (std::uint64_t id = 1; id <= 4; ++id) t.receive(id, 100).value();
  t.b.engine.arm_srq(t.srq, 3).value();
  EXPECT_EQ(t.limit(), 3u);
  t.send(0, 10, 40);
  t.wire.run();
  EXPECT_TRUE(t.b.events().empty());  // 3 receives wait, and the limit is 3
  t.send(1, 11, 40);
  t.wire.run();
  EXPECT_EQ(t.b.events(), std::vector<Event>{limit_reached(t.srq)});
  EXPECT_EQ(t.limit(), 0u);
  t.send(0, 12, 40);
  t.wire.run();
  EXPECT_TRUE(t.b.events().empty());
}

TEST(Srq, ArmingALimitThatIsAlreadyReachedRaisesTheEventAtOnce) {
  TwoQpsOneSrq t;
  t.receive(1, 100).value();
  t.b.engine.arm_srq(t.srq, 5).value();
  EXPECT_EQ(t.b.events(), std::vector<Event>{limit_reached(t.srq)});
  EXPECT_EQ(t.b.engine.arm_srq(t.srq, 65).error().code, Errc::kInvalidArgument);
}

TEST(Srq, AQpInErrorFlushesOnlyItsReceivesAndRaisesLastWqe) {
  TwoQpsOneSrq t;
  for (std::uint64_t id = 1; id <= 3; ++id) t.receive(id, 1000).value();
  t.wire.faults = [](std::uint64_t, auto bytes) {
    return PacketOutcome{.copies = text(bytes).starts_with("SEND_LAST") ? 0u : 1u};
  };
  t.send(0, 10, 600);
  t.step();
  t.b.engine.modify_qp(t.qb[0], {.state = QpState::kError}, attribute::kState, t.wire.now).value();
  EXPECT_EQ(t.receiver_completions(), "1:flushed");
  const Event last_wqe = QpEvent{t.qb[0], 600, Qpn{0x21}, QpEvent::Kind::kLastWqe};
  EXPECT_EQ(t.b.events(), std::vector<Event>{last_wqe});
  // The event comes only once, and the other QP takes the remaining receives.
  t.b.engine.modify_qp(t.qb[0], {.state = QpState::kError}, attribute::kState, t.wire.now).value();
  EXPECT_TRUE(t.b.events().empty());
  t.wire.faults = nullptr;
  t.send(1, 11, 40);
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "2");
}

TEST(Srq, ATooLongMessageFailsOnlyItsReceive) {
  TwoQpsOneSrq t;
  t.receive(1, 10).value();
  t.receive(2, 100).value();
  t.send(0, 10, 40);
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "1:local length error");
  t.send(1, 11, 40);
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "2");
}

TEST(Srq, ReceivesUseTheKeysOfTheSrqsDomain) {
  TwoQpsOneSrq t;
  const PdHandle other = t.b.engine.create_pd().value();
  const MrInfo foreign =
      t.b.engine.register_mr(other, t.b.address(0), 64, t.b.address(0), Host::kAllAccess).value();
  const Sge sge{t.b.address(0), 64, foreign.lkey};
  t.b.engine.post_srq_recv(t.srq, {.wr_id = 1, .sges = {&sge, 1}}).value();
  t.send(0, 10, 8);
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "1:local protection error");

  // This SRQ is in another domain than its QP, and its receives use keys of its own domain.
  TwoQpsOneSrq u;
  const PdHandle pd_of_srq = u.b.engine.create_pd().value();
  const MrInfo key =
      u.b.engine.register_mr(pd_of_srq, u.b.address(0), 64, u.b.address(0), Host::kAllAccess)
          .value();
  const SrqHandle srq = u.b.engine.create_srq(pd_of_srq, {.max_wr = 1, .max_sge = 1}, 1).value();
  const QpHandle qp =
      u.b.engine
          .create_qp({.pd = u.b.pd, .send_cq = u.b.cq, .recv_cq = u.b.cq, .srq = srq}, Qpn{0x44})
          .value();
  const QpHandle peer = create_connected_qp(u.a, u.o, Qpn{0x33});
  bring_to_state(u.a, peer, attributes_for(u.a, u.b, u.o, Qpn{0x44}, u.o.psn_a, u.o.psn_b),
                 QpState::kRts);
  bring_to_state(u.b, qp, attributes_for(u.b, u.a, u.o, Qpn{0x33}, u.o.psn_b, u.o.psn_a),
                 QpState::kRts);
  const Sge good{u.b.address(0), 64, key.lkey};
  u.b.engine.post_srq_recv(srq, {.wr_id = 2, .sges = {&good, 1}}).value();
  const Sge from = u.a.sge(0, 8);
  u.a.engine.post_send(peer, {.sges = {&from, 1}}).value();
  u.wire.run();
  EXPECT_EQ(u.receiver_completions(), "2");
}

// A UC QP that loses a message keeps the receive of this message for its next message.
TEST(Srq, AUcQpKeepsTheReceiveOfALostMessage) {
  TwoQpsOneSrq t;
  const auto connect_uc = [&](Host& host, Host& peer, SrqHandle srq, Qpn own_qpn, Qpn peer_qpn) {
    const QpInit init{.type = QpType::kUc,
                      .pd = host.pd,
                      .send_cq = host.cq,
                      .recv_cq = host.cq,
                      .srq = srq,
                      .caps = t.o.caps};
    const QpHandle qp = host.engine.create_qp(init, own_qpn).value();
    QpAttributes a = attributes_for(host, peer, t.o, peer_qpn, t.o.psn_a, t.o.psn_a);
    using namespace attribute;
    for (const auto& [to, mask] :
         {std::pair(QpState::kInit, kPkeyIndex | kPort | kAccessFlags),
          std::pair(QpState::kRtr, kPath | kPathMtu | kDestinationQpn | kRqPsn),
          std::pair(QpState::kRts, std::uint32_t{kSqPsn})}) {
      a.state = to;
      host.engine.modify_qp(qp, a, mask | kState, {}).value();
    }
    return qp;
  };
  const QpHandle from = connect_uc(t.a, t.b, {}, Qpn{0x51}, Qpn{0x61});
  connect_uc(t.b, t.a, t.srq, Qpn{0x61}, Qpn{0x51});
  t.receive(1, 1000).value();
  t.receive(2, 1000).value();
  const Sge sge = t.a.sge(0, 600);
  t.wire.faults = [](std::uint64_t number, auto) {
    return PacketOutcome{.copies = number == 2 ? 0u : 1u};
  };
  t.a.engine.post_send(from, {.sges = {&sge, 1}}).value();
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "");
  t.send(0, 10, 40);  // another QP takes the next receive
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "2");
  t.a.engine.post_send(from, {.sges = {&sge, 1}}).value();
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "1");
}

TEST(Srq, AUdQpTakesNoReceiveForATooLongDatagram) {
  TwoQpsOneSrq t;
  const auto create_ud_qp = [&](Host& host, SrqHandle srq, Qpn qpn) {
    const QpHandle qp = host.engine
                            .create_qp({.type = QpType::kUd,
                                        .pd = host.pd,
                                        .send_cq = host.cq,
                                        .recv_cq = host.cq,
                                        .srq = srq,
                                        .caps = t.o.caps},
                                       qpn)
                            .value();
    QpAttributes a;
    a.qkey = {5};
    for (const auto& [to, mask] :
         {std::pair(QpState::kInit, attribute::kPkeyIndex | attribute::kPort | attribute::kQkey),
          std::pair(QpState::kRtr, 0u),
          std::pair(QpState::kRts, std::uint32_t{attribute::kSqPsn})}) {
      a.state = to;
      host.engine.modify_qp(qp, a, mask | attribute::kState, {}).value();
    }
    return qp;
  };
  const QpHandle from = create_ud_qp(t.a, {}, Qpn{0x51});
  create_ud_qp(t.b, t.srq, Qpn{0x61});
  const AhHandle ah =
      t.a.engine.create_ah(t.a.pd, {.address = {.source = gid_of(1), .destination = gid_of(2)}})
          .value();
  const auto send_datagram = [&](std::size_t bytes) {
    const Sge sge = t.a.sge(0, bytes);
    t.a.engine
        .post_send(from, {.sges = {&sge, 1}, .remote_qpn = Qpn{0x61}, .remote_qkey = {5}, .ah = ah})
        .value();
    t.wire.run();
  };
  send_datagram(20);
  EXPECT_EQ(t.receiver_completions(), "");  // no receive is posted
  t.receive(1, 40 + 20).value();
  send_datagram(21);
  EXPECT_EQ(t.receiver_completions(), "");
  send_datagram(20);
  const auto got = t.b.poll();
  ASSERT_EQ(text(got), "1");
  EXPECT_EQ(got[0].byte_len, 60u);
}

TEST(Srq, AnSrqGrowsAndShrinksWithReceivesInIt) {
  TwoQpsOneSrq t({.mtu = Mtu::k256}, 64);
  for (std::uint64_t id = 0; id < 64; ++id) t.receive(id, 8).value();
  for (int i = 0; i < 3; ++i) t.send(0, 1, 8);
  t.wire.run();
  EXPECT_EQ(t.receiver_completions(), "0 1 2");
  t.b.engine.resize_srq(t.srq, 200).value();
  EXPECT_EQ(t.b.engine.query_srq(t.srq).value().caps.max_wr, 256u);
  for (std::uint64_t id = 64; id < 64 + 195; ++id) t.receive(id, 8).value();
  EXPECT_EQ(t.receive(999, 8).error().code, Errc::kNoResources);
  EXPECT_EQ(t.b.engine.resize_srq(t.srq, 64).error().code, Errc::kInvalidArgument);
  for (std::uint64_t id = 3; id < 64 + 195; ++id) {
    t.send(0, 1, 8);
    t.wire.run();
    ASSERT_EQ(t.receiver_completions(), std::to_string(id));
  }
  t.b.engine.resize_srq(t.srq, 10).value();
  for (std::uint64_t id = 0; id < 64; ++id) t.receive(id, 8).value();
  EXPECT_EQ(t.receive(64, 8).error().code, Errc::kNoResources);
  EXPECT_EQ(t.b.engine.resize_srq(t.srq, 40'000).error().code, Errc::kInvalidArgument);
}

TEST(Srq, AnSrqThatShrinksCountsTheReceivesInSlotsThatItGivesUp) {
  TwoQpsOneSrq t({.mtu = Mtu::k256}, 128);
  for (std::uint64_t id = 0; id < 64; ++id) {
    t.receive(id, 8).value();
    t.send(0, 1, 8);
    t.wire.run();
    ASSERT_EQ(t.receiver_completions(), std::to_string(id));
  }
  for (std::uint64_t id = 64; id < 128; ++id) t.receive(id, 8).value();
  t.b.engine.resize_srq(t.srq, 64).value();
  for (std::uint64_t id = 64; id < 192; ++id) {
    ASSERT_EQ(t.receive(999, 8).error().code, Errc::kNoResources);
    t.send(0, 1, 8);
    t.wire.run();
    ASSERT_EQ(t.receiver_completions(), std::to_string(id));
    t.receive(id + 64, 8).value();
  }
}

TEST(Srq, AnSrqCannotBeDestroyedWhileQpsUseIt) {
  TwoQpsOneSrq t;
  EXPECT_EQ(t.b.engine.destroy_srq(t.srq).error().code, Errc::kBusy);
  for (const QpHandle qp : t.qb) t.b.engine.destroy_qp(qp).value();
  const PdHandle pd = t.b.engine.create_pd().value();
  const SrqHandle other = t.b.engine.create_srq(pd, {.max_wr = 1, .max_sge = 1}, 0).value();
  EXPECT_EQ(t.b.engine.destroy_pd(pd).error().code, Errc::kBusy);
  t.b.engine.destroy_srq(other).value();
  t.b.engine.destroy_pd(pd).value();
  t.b.engine.arm_srq(t.srq, 1).value();
  t.b.engine.destroy_srq(t.srq).value();
  EXPECT_TRUE(t.b.events().empty());
  EXPECT_EQ(t.receive(1, 8).error().code, Errc::kBadHandle);
  EXPECT_EQ(t.b.engine.destroy_srq(t.srq).error().code, Errc::kBadHandle);
}

TEST(Srq, AQpWithAnSrqHasNoReceiveQueue) {
  TwoQpsOneSrq t;
  const auto caps = t.b.engine.query_qp(t.qb[0]).value().init.caps;
  EXPECT_EQ(caps.max_recv_wr, 0u);
  EXPECT_EQ(caps.max_recv_sge, 0u);
  EXPECT_EQ(t.b.engine.post_recv(t.qb[0], {}).error().code, Errc::kInvalidArgument);
  const Sge five[5]{};
  EXPECT_EQ(t.b.engine.post_srq_recv(t.srq, {.sges = five}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(t.b.engine.create_srq(t.b.pd, {.max_wr = 0, .max_sge = 1}, 0).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(t.b.engine.create_srq(t.b.pd, {.max_wr = 1, .max_sge = 33}, 0).error().code,
            Errc::kInvalidArgument);
}

}  // namespace
}  // namespace verbena::hca
