#include "hca/engine.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr std::size_t kReceiverOffset = 1 << 20;  // the offset of the data in the receiving host

TEST(Engine, CompletesOnlySignaledSends) {
  Pair p;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(
        p.rdma(WrOpcode::kWrite, id, 0, kReceiverOffset, 10, id == 3 ? send_flag::kSignaled : 0));
  }
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "3");
  Pair all({.signal_all = true});
  ASSERT_TRUE(all.rdma(WrOpcode::kWrite, 1, 0, kReceiverOffset, 10, 0));
  all.wire.run();
  EXPECT_EQ(text(all.a.poll()), "1");
}

// Polling a completion frees the slot of its request.  So a CQ with the size of the send queue
// never overflows.
TEST(Engine, PollingACompletionFreesItsSlot) {
  Pair p;
  const auto fill = [&](std::uint32_t flags) {
    unsigned posted = 0;
    while (p.rdma(WrOpcode::kWrite, 1, 0, kReceiverOffset, 10, flags)) ++posted;
    p.wire.run();
    return posted;
  };
  const unsigned capacity = fill(send_flag::kSignaled);
  EXPECT_EQ(capacity, 64u);
  EXPECT_EQ(fill(send_flag::kSignaled), 0u);
  std::array<WorkCompletion, 3> three;
  ASSERT_EQ(p.a.engine.poll_cq(p.a.cq, three).value(), 3u);
  EXPECT_EQ(fill(0), 3u);
  EXPECT_EQ(p.a.poll().size(), capacity - 3);
  // The three unsignaled requests keep their slots until the completion of a later request is
  // polled.
  EXPECT_EQ(fill(send_flag::kSignaled), capacity - 3);
  EXPECT_EQ(p.a.poll().size(), capacity - 3);
  EXPECT_EQ(fill(send_flag::kSignaled), capacity);
}

TEST(Engine, DestroyingAQpRemovesItsCompletionsFromTheCq) {
  Pair p;
  const QpHandle other = create_connected_qp(p.a, p.o, Qpn{0x33});
  bring_to_state(p.a, other, attributes_for(p.a, p.b, p.o, Qpn{0x44}, p.o.psn_a, p.o.psn_b),
                 QpState::kInit);
  QpAttributes error;
  error.state = QpState::kError;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    ASSERT_TRUE(p.a.engine.post_recv(id % 2 == 0 ? other : p.qa, {.wr_id = id}));
    if (id < 5) continue;
    ASSERT_TRUE(p.a.engine.modify_qp(id % 2 == 0 ? other : p.qa, error, attribute::kState, {}));
  }
  ASSERT_TRUE(p.a.engine.destroy_qp(p.qa));
  const auto remaining = p.a.poll();
  ASSERT_EQ(remaining.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(remaining[i].wr_id, 2 * i + 2);
}

TEST(Engine, GrantsAsManyInlineBytesAsTheElementsOccupy) {
  Host host(1);
  QpInit init;
  init.pd = host.pd;
  init.send_cq = init.recv_cq = host.cq;
  init.type = QpType::kRc;
  init.caps = {.max_send_wr = 1, .max_send_sge = 2};
  const QpHandle qp = host.engine.create_qp(init, Qpn{0x11}).value();
  EXPECT_EQ(host.engine.query_qp(qp).value().init.caps.max_inline_bytes, 32u);
}

TEST(Engine, RaisesCommunicationEstablishedExactlyOnce) {
  Options o;
  Host a(1), b(2);
  Wire wire;
  wire.attach(a);
  wire.attach(b);
  const QpHandle qa = create_connected_qp(a, o, Qpn{0x11});
  const QpHandle qb = create_connected_qp(b, o, Qpn{0x22});
  bring_to_state(a, qa, attributes_for(a, b, o, Qpn{0x22}, o.psn_a, o.psn_b), QpState::kRts);
  const auto attributes_b = attributes_for(b, a, o, Qpn{0x11}, o.psn_b, o.psn_a);
  bring_to_state(b, qb, attributes_b, QpState::kRtr);
  ASSERT_TRUE(a.engine.mark_established(qa));
  const Sge buffer = b.sge(0, 10);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(b.engine.post_recv(qb, {.sges = {&buffer, 1}}));
  const Sge data = a.sge(0, 10);
  ASSERT_TRUE(a.engine.post_send(qa, {.sges = {&data, 1}}));
  wire.run();
  const std::vector<Event> expected = {QpEvent{qb, 500 + 0x22, Qpn{0x22}, QpEvent::Kind::kCommEst}};
  EXPECT_EQ(b.events(), expected);  // the packet arrived in the state RTR
  auto rts = attributes_b;
  rts.state = QpState::kRts;
  ASSERT_TRUE(b.engine.modify_qp(qb, rts, kToRts, wire.now));
  ASSERT_TRUE(a.engine.post_send(qa, {.sges = {&data, 1}}));
  const Sge back = b.sge(0, 4);
  ASSERT_TRUE(a.engine.post_recv(qa, {.sges = {&back, 1}}));
  wire.run();
  EXPECT_TRUE(b.events().empty());
  EXPECT_TRUE(a.events().empty());  // a packet after mark_established() raises no event
}

TEST(Engine, ReportsAFirstPacketInRtsOnlyToTheConnectionManager) {
  Pair p;
  ASSERT_TRUE(p.receive(1, kReceiverOffset, 10));
  ASSERT_TRUE(p.send(1, 0, 10));
  p.wire.run();
  EXPECT_EQ(
      p.b.events(),
      (std::vector<Event>{QpEvent{p.qb, 500 + 0x22, Qpn{0x22}, QpEvent::Kind::kFirstPacket}}));
  EXPECT_TRUE(p.a.events().empty());  // responses raise no event
}

// mark_established() is not part of the specification, so it must not suppress an event of the
// specification.
TEST(Engine, MarkEstablishedDoesNotSuppressCommunicationEstablished) {
  for (const QpState state : {QpState::kRtr, QpState::kRts}) {
    HostUnderTest b({}, state);
    ASSERT_TRUE(b.host.engine.mark_established(b.qp));
    b.receive(1, 10);
    b.request(wire::Opcode::kRcSendOnly, 2000, 8);
    std::vector<Event> expected;
    if (state == QpState::kRtr) {
      expected.push_back(QpEvent{b.qp, 500 + 0x11, Qpn{0x11}, QpEvent::Kind::kCommEst});
    }
    EXPECT_EQ(b.host.events(), expected);
  }
}

TEST(Engine, NotifiesAnArmedCqOnce) {
  Pair p;
  ASSERT_TRUE(p.a.engine.arm_cq(p.a.cq, false));
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 1, 0, kReceiverOffset, 10));
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 2, 0, kReceiverOffset, 10));
  p.wire.run();
  EXPECT_EQ(p.a.events(), (std::vector<Event>{CqNotify{p.a.cq, 101}}));
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 3, 0, kReceiverOffset, 10));
  p.wire.run();
  EXPECT_TRUE(p.a.events().empty());
}

TEST(Engine, ACqArmedForSolicitedIgnoresOtherCompletions) {
  Pair p;
  ASSERT_TRUE(p.b.engine.mark_established(p.qb));
  ASSERT_TRUE(p.b.engine.arm_cq(p.b.cq, true));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(p.receive(1, kReceiverOffset, 10));
  ASSERT_TRUE(p.send(1, 0, 10, 0));
  p.wire.run();
  EXPECT_TRUE(p.b.events().empty());
  ASSERT_TRUE(p.send(2, 0, 10, send_flag::kSolicited));
  p.wire.run();
  EXPECT_EQ(p.b.events(), (std::vector<Event>{CqNotify{p.b.cq, 102}}));
}

TEST(Engine, ACqOverflowPutsTheQpInTheErrorState) {
  Options o;
  Host a(1), b(2);
  Wire wire;
  wire.attach(a);
  wire.attach(b);
  a.cq = a.engine.create_cq(2, 77).value();
  const QpHandle qa = create_connected_qp(a, o, Qpn{0x11});
  const QpHandle qb = create_connected_qp(b, o, Qpn{0x22});
  bring_to_state(a, qa, attributes_for(a, b, o, Qpn{0x22}, o.psn_a, o.psn_b), QpState::kRts);
  bring_to_state(b, qb, attributes_for(b, a, o, Qpn{0x11}, o.psn_b, o.psn_a), QpState::kRts);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(a.engine.post_send(
        qa, {.wr_id = id, .opcode = WrOpcode::kWrite, .flags = send_flag::kSignaled}));
  }
  wire.run();
  EXPECT_EQ(a.events(), (std::vector<Event>{CqError{a.cq, 77}}));
  EXPECT_EQ(a.engine.query_qp(qa).value().attributes.state, QpState::kError);
  EXPECT_EQ(text(a.poll()), "1 2");
}

TEST(Engine, ManyBusyQpsAllCompleteTheirRequests) {
  Options o;
  Host a(1, 64 << 20), b(2, 64 << 20);
  Wire wire;
  wire.attach(a);
  wire.attach(b);
  std::vector<QpHandle> qps;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const Qpn qa{0x100 + i}, qb{0x200 + i};
    const QpHandle ha = create_connected_qp(a, o, qa), hb = create_connected_qp(b, o, qb);
    bring_to_state(a, ha, attributes_for(a, b, o, qb, o.psn_a, o.psn_b), QpState::kRts);
    bring_to_state(b, hb, attributes_for(b, a, o, qa, o.psn_b, o.psn_a), QpState::kRts);
    qps.push_back(ha);
  }
  a.fill(0, 8 << 20, 1);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const Sge sge = a.sge(i << 20, 1 << 20);
    ASSERT_TRUE(a.engine.post_send(qps[i], {.wr_id = i,
                                            .opcode = WrOpcode::kWrite,
                                            .flags = send_flag::kSignaled,
                                            .sges = {&sge, 1},
                                            .remote_address = b.address(i << 20),
                                            .r_key = b.mr.rkey}));
  }
  wire.run();
  EXPECT_EQ(a.poll().size(), 8u);
  EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + (8 << 20), b.memory.begin()));
}

TEST(Engine, RefusesToDestroyAnObjectInUse) {
  Pair p;
  const AhHandle ah = p.a.engine.create_ah(p.a.pd, {}).value();
  EXPECT_EQ(p.a.engine.destroy_cq(p.a.cq).error().code, Errc::kBusy);
  EXPECT_STREQ(p.a.engine.destroy_pd(p.a.pd).error().context,
               "queue pairs use the protection domain");
  ASSERT_TRUE(p.a.engine.destroy_qp(p.qa));
  EXPECT_STREQ(p.a.engine.destroy_pd(p.a.pd).error().context,
               "memory regions use the protection domain");
  ASSERT_TRUE(p.a.engine.deregister_mr(p.a.mr.handle));
  EXPECT_STREQ(p.a.engine.destroy_pd(p.a.pd).error().context,
               "address handles use the protection domain");
  ASSERT_TRUE(p.a.engine.destroy_ah(ah));
  EXPECT_TRUE(p.a.engine.destroy_pd(p.a.pd));
  EXPECT_TRUE(p.a.engine.destroy_cq(p.a.cq));
}

// Tries many calls that take a handle, with handles that name no object.
void expect_bad_handles(Engine& e, PdHandle pd, MrHandle mr, CqHandle cq, AhHandle ah, QpHandle qp,
                        const Host& good) {
  const auto bad = [](const auto& result) {
    return !result.has_value() && result.error().code == Errc::kBadHandle;
  };
  EXPECT_TRUE(bad(e.destroy_pd(pd)));
  EXPECT_TRUE(bad(e.register_mr(pd, 1, 1, 1, 0)));
  EXPECT_TRUE(bad(e.create_ah(pd, {})));
  EXPECT_TRUE(bad(e.deregister_mr(mr)));
  EXPECT_TRUE(bad(e.cq_capacity(cq)));
  EXPECT_TRUE(bad(e.destroy_cq(cq)));
  EXPECT_TRUE(bad(e.poll_cq(cq, {})));
  EXPECT_TRUE(bad(e.arm_cq(cq, false)));
  EXPECT_TRUE(bad(e.destroy_ah(ah)));
  const Qpn unused_qpn{0x999};
  EXPECT_TRUE(bad(e.create_qp({.pd = pd, .send_cq = good.cq, .recv_cq = good.cq}, unused_qpn)));
  EXPECT_TRUE(bad(e.create_qp({.pd = good.pd, .send_cq = cq, .recv_cq = good.cq}, unused_qpn)));
  EXPECT_TRUE(bad(e.create_qp({.pd = good.pd, .send_cq = good.cq, .recv_cq = cq}, unused_qpn)));
  EXPECT_TRUE(bad(e.modify_qp(qp, {}, attribute::kState, {})));
  EXPECT_TRUE(bad(e.query_qp(qp)));
  EXPECT_TRUE(bad(e.destroy_qp(qp)));
  EXPECT_TRUE(bad(e.mark_established(qp)));
  EXPECT_TRUE(bad(e.post_send(qp, {})));
  EXPECT_TRUE(bad(e.post_recv(qp, {})));
  EXPECT_TRUE(bad(e.find_qp(unused_qpn)));
}

TEST(Engine, ReregisteringChangesARegionAndKeepsItsKeys) {
  Pair p;
  using Change = Engine::MrChange;
  const auto change = [&](const Change& c) { return p.b.engine.reregister_mr(p.b.mr.handle, c); };
  const auto writes_to = [&](std::size_t offset) {
    p.a.poll();
    p.rdma(WrOpcode::kWrite, 1, 0, offset, 16).value();
    p.wire.run();
    return text(p.a.poll()) == "1";
  };
  p.a.fill(0, 16, 3);
  EXPECT_EQ(change({}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(change({.what = 8}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(change({.what = Change::kPd, .pd = {7}}).error().code, Errc::kBadHandle);
  EXPECT_EQ(change({.what = Change::kTranslation, .length = 0}).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(change({.what = Change::kAccess, .access_flags = access::kRemoteWrite}).error().code,
            Errc::kInvalidArgument);
  EXPECT_TRUE(writes_to(100));  // nothing has changed

  change({.what = Change::kTranslation, .address = p.b.address(4096), .length = 4096}).value();
  EXPECT_TRUE(writes_to(4096));
  EXPECT_TRUE(p.same(0, 4096, 16));
  const PdHandle other = p.b.engine.create_pd().value();
  change({.what = Change::kPd, .pd = other}).value();
  EXPECT_EQ(p.b.engine.destroy_pd(other).error().code, Errc::kBusy);
  EXPECT_FALSE(writes_to(4096));  // the region is in another domain than the QP
  EXPECT_EQ(p.state_b(), QpState::kError);
  change({.what = Change::kPd, .pd = p.b.pd}).value();
  p.b.engine.destroy_pd(other).value();

  Pair q;
  q.b.engine
      .reregister_mr(q.b.mr.handle, {.what = Change::kAccess, .access_flags = access::kRemoteRead})
      .value();
  q.rdma(WrOpcode::kRead, 1, 0, 0, 16).value();
  q.wire.run();
  EXPECT_EQ(text(q.a.poll()), "1");
  q.rdma(WrOpcode::kWrite, 2, 0, 0, 16).value();
  q.wire.run();
  EXPECT_EQ(text(q.a.poll()), "2:remote access error");
}

TEST(Engine, ANullRegionReadsAsZerosAndDiscardsWrites) {
  Pair p;
  const MrInfo null_a = p.a.engine.register_null_mr(p.a.pd).value();
  const MrInfo null_b = p.b.engine.register_null_mr(p.b.pd).value();
  p.a.fill(0, 3000, 7);
  p.b.fill(0, 3000, 9);
  // Sends 1000 bytes, 500 zeros and 100 bytes.  Receives 1200 bytes, discards 300, receives 100.
  const Sge out[] = {p.a.sge(0, 1000), {12345, 500, null_a.lkey}, p.a.sge(1500, 100)};
  const Sge in[] = {
      p.b.sge(0, 1200), {~std::uint64_t{0} - 300, 300, null_b.lkey}, p.b.sge(2000, 100)};
  p.b.engine.post_recv(p.qb, {.wr_id = 1, .sges = in}).value();
  p.a.engine.post_send(p.qa, {.wr_id = 2, .flags = send_flag::kSignaled, .sges = out}).value();
  p.wire.run();
  ASSERT_EQ(text(p.b.poll()), "1");
  EXPECT_TRUE(p.same(0, 0, 1000));
  for (std::size_t i = 1000; i < 1200; ++i) EXPECT_EQ(p.b.memory[i], std::byte{0});
  EXPECT_TRUE(p.same(1500, 2000, 100));
  // A peer cannot name the region, and neither can a QP of another domain.
  p.a.engine
      .post_send(p.qa, {.wr_id = 3,
                        .opcode = WrOpcode::kRead,
                        .flags = send_flag::kSignaled,
                        .sges = out,
                        .remote_address = 0,
                        .r_key = null_b.rkey})
      .value();
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "2 3:remote access error");
  Pair q;
  const PdHandle other = q.a.engine.create_pd().value();
  const Sge foreign{0, 8, q.a.engine.register_null_mr(other).value().lkey};
  q.a.engine.post_send(q.qa, {.wr_id = 4, .sges = {&foreign, 1}}).value();
  q.wire.run();
  EXPECT_EQ(text(q.a.poll()), "4:local protection error");
}

TEST(Engine, ACompletionHasTheTimeOfTheDriversCall) {
  Pair p;
  p.receive(1, 0, 64).value();
  p.send(2, 0, 16).value();
  const Time posted = p.wire.now;
  p.wire.run();
  EXPECT_EQ(p.b.poll().at(0).time, posted + kLatency);
  EXPECT_EQ(p.a.poll().at(0).time, posted + 2 * kLatency);
}

TEST(Engine, RefusesToResizeACqBelowItsNumberOfCompletions) {
  Pair p;
  for (std::uint64_t id = 0; id < 5; ++id) p.receive(id, 0, 64).value();
  for (std::uint64_t id = 0; id < 5; ++id) p.send(id, 0, 16, 0).value();
  p.wire.run();
  EXPECT_EQ(p.b.engine.resize_cq(p.b.cq, 4).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(p.b.engine.resize_cq(p.b.cq, 0).error().code, Errc::kInvalidArgument);
  p.b.engine.resize_cq(p.b.cq, 9).value();
  EXPECT_EQ(p.b.engine.cq_capacity(p.b.cq).value(), 16u);
  EXPECT_EQ(text(p.b.poll()), "0 1 2 3 4");
}

TEST(Engine, RefusesStaleAndForgedHandles) {
  Host h(1);
  Options o;
  const PdHandle pd = h.engine.create_pd().value();
  const MrInfo mr = h.engine.register_mr(pd, h.address(0), 10, 0, 0).value();
  const CqHandle cq = h.engine.create_cq(1, 0).value();
  const AhHandle ah = h.engine.create_ah(pd, {}).value();
  const QpHandle qp = create_connected_qp(h, o, Qpn{5});
  ASSERT_TRUE(h.engine.destroy_qp(qp));
  ASSERT_TRUE(h.engine.destroy_ah(ah));
  ASSERT_TRUE(h.engine.destroy_cq(cq));
  ASSERT_TRUE(h.engine.deregister_mr(mr.handle));
  ASSERT_TRUE(h.engine.destroy_pd(pd));
  expect_bad_handles(h.engine, pd, mr.handle, cq, ah, qp, h);
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0xffffffff},
                                    ~std::uint64_t{0}, std::uint64_t{7} << 32 | 3}) {
    SCOPED_TRACE(value);
    expect_bad_handles(h.engine, {value}, {value}, {value}, {value}, {value}, h);
  }
  // A new object in an old slot has another handle.
  EXPECT_NE(h.engine.create_pd().value(), pd);
}

TEST(Engine, EnforcesAndCountsItsLimits) {
  Engine e({.pds = 1, .mrs = 1, .cqs = 1, .ahs = 1, .qps = 1}, Random(1));
  const PdHandle pd = e.create_pd().value();
  std::array<std::byte, 16> memory{};
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  EXPECT_EQ(e.create_pd().error().code, Errc::kNoResources);
  EXPECT_STREQ(e.create_pd().error().context,
               "the limit of protection domains (max_pd) is reached");
  ASSERT_TRUE(e.register_mr(pd, address, 16, 0, 0));
  EXPECT_EQ(e.register_mr(pd, address, 16, 0, 0).error().code, Errc::kNoResources);
  const CqHandle cq = e.create_cq(3, 0).value();
  EXPECT_EQ(e.cq_capacity(cq).value(), 4u);
  EXPECT_EQ(e.create_cq(3, 0).error().code, Errc::kNoResources);
  ASSERT_TRUE(e.create_ah(pd, {}));
  EXPECT_EQ(e.create_ah(pd, {}).error().code, Errc::kNoResources);
  const QpInit init{.pd = pd, .send_cq = cq, .recv_cq = cq};
  ASSERT_TRUE(e.create_qp(init, Qpn{3}));
  EXPECT_EQ(e.create_qp(init, Qpn{3}).error().code, Errc::kAddressInUse);
  EXPECT_EQ(e.create_qp(init, Qpn{4}).error().code, Errc::kNoResources);
  EXPECT_EQ(e.create_cq(0, 0).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(e.create_cq(e.limits().max_cqe + 1, 0).error().code, Errc::kInvalidArgument);
  for (auto member : {&QpCaps::max_send_wr, &QpCaps::max_recv_wr, &QpCaps::max_send_sge,
                      &QpCaps::max_recv_sge, &QpCaps::max_inline_bytes}) {
    QpInit big = init;
    big.caps.*member = 1 << 20;
    EXPECT_EQ(e.create_qp(big, Qpn{4}).error().code, Errc::kInvalidArgument);
  }
  for (const std::uint32_t qpn : {0u, 0xffffffu, 0x1000000u}) {
    EXPECT_EQ(e.create_qp(init, Qpn{qpn}).error().code, Errc::kInvalidArgument);
  }
  const Counters counters = e.counters();
  EXPECT_EQ(counters[Counter::kLimitPds], 2u);
  for (const Counter limit :
       {Counter::kLimitMrs, Counter::kLimitCqs, Counter::kLimitAhs, Counter::kLimitQps}) {
    EXPECT_EQ(counters[limit], 1u) << to_string(limit);
  }
  EXPECT_EQ(counters[Counter::kLimitSizes], 7u);
}

TEST(Engine, HasWorkAfterAPost) {
  Pair p;
  link::Burst burst;
  while (p.a.engine.transmit(burst, p.wire.now)) burst.clear();
  EXPECT_FALSE(p.a.engine.has_work());
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 1, 0, kReceiverOffset, 1));
  EXPECT_TRUE(p.a.engine.has_work());
  p.wire.run();
  EXPECT_FALSE(p.a.engine.has_work());
}

TEST(Engine, ReturnsARowForEachQp) {
  Pair p;
  ASSERT_TRUE(p.receive(1, kReceiverOffset, 3000));
  ASSERT_TRUE(p.send(1, 0, 3000));
  p.wire.run();
  ASSERT_EQ(p.a.engine.qp_count(), 1u);
  std::vector<QpRow> rows(2);
  ASSERT_EQ(p.a.engine.rows(rows), 1u);
  EXPECT_EQ(rows[0].qpn, 0x11u);
  EXPECT_EQ(rows[0].destination_qpn, 0x22u);
  EXPECT_EQ(rows[0].state, QpState::kRts);
  EXPECT_EQ(rows[0].destination, gid_of(2));
  EXPECT_EQ(rows[0].send_psn, 1003u);
  EXPECT_EQ(rows[0].acked_psn, 1003u);
  EXPECT_EQ(rows[0].packets_out, 3u);
  EXPECT_EQ(rows[0].bytes_out, 3000u);
  ASSERT_EQ(p.b.engine.rows(rows), 1u);
  EXPECT_EQ(rows[0].expected_psn, 1003u);
  EXPECT_EQ(rows[0].bytes_in, 3000u);
}

TEST(Engine, CountsDroppedPacketsByReason) {
  Pair p;
  const link::Address from_a{.source = gid_of(1), .destination = gid_of(2)};
  wire::TransportPacket packet;
  packet.bth = {
      .opcode = wire::Opcode::kRcSendOnly, .destination_qpn = Qpn{0x22}, .psn = Psn{1000}};
  const auto counters = [&] { return p.b.engine.counters(); };
  const auto deliver = [&](const wire::TransportPacket& t, const link::Address& address) {
    p.b.engine.receive({address, packet_of(t, 4)}, p.wire.now);
  };
  auto wrong = packet;
  wrong.bth.destination_qpn = Qpn{0x23};
  deliver(wrong, from_a);
  EXPECT_EQ(counters()[Counter::kDropUnknownQp], 1u);
  wrong = packet;
  wrong.bth.opcode = wire::Opcode::kUdSendOnly;
  deliver(wrong, from_a);
  EXPECT_EQ(counters()[Counter::kDropWrongTransport], 1u);
  wrong = packet;
  wrong.bth.pkey = Pkey{0x8001};
  deliver(wrong, from_a);
  EXPECT_EQ(counters()[Counter::kDropBadPkey], 1u);
  deliver(packet, {.source = gid_of(3), .destination = gid_of(2)});
  EXPECT_EQ(counters()[Counter::kDropWrongSource], 1u);
  p.b.engine.receive({from_a, std::vector<std::byte>(8)}, p.wire.now);
  EXPECT_EQ(counters().malformed[std::to_underlying(wire::Drop::kTooShort)], 1u);
  EXPECT_TRUE(p.b.events().empty());  // no packet was a valid request
  packet.bth.pkey = Pkey{0x7fff};     // a limited member may send to a full member
  ASSERT_TRUE(p.receive(1, kReceiverOffset, 10));
  deliver(packet, from_a);
  EXPECT_EQ(text(p.b.poll()), "1");
  // All six packets were counted, each of them once.
  EXPECT_EQ(counters()[Counter::kPacketsIn], 6u);
  EXPECT_EQ(counters()[Counter::kPacketsToQps], 1u);
  for (std::size_t i = 0; i < counters().values.size(); ++i) {
    EXPECT_STRNE(to_string(static_cast<Counter>(i)), "?");
  }
}

}  // namespace
}  // namespace verbena::hca
