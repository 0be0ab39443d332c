#include "hca/ud.h"

#include <gtest/gtest.h>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

struct UdPair {
  explicit UdPair(const Personality& personality = kConnectX)
      : a(1, 4 << 20, personality), b(2, 4 << 20, personality) {
    wire.attach(a);
    wire.attach(b);
    qa = create_ud(a, Qpn{0x11});
    qb = create_ud(b, Qpn{0x22});
    ah = a.engine
             .create_ah(a.pd, {.address = {.source = gid_of(1),
                                           .destination = gid_of(2),
                                           .traffic_class = 5,
                                           .hop_limit = 9}})
             .value();
    a.fill(0, 5000, 1);
  }
  Result<void> send(std::uint64_t id, std::size_t bytes, Qkey qkey = kUdQkey,
                    WrOpcode opcode = WrOpcode::kSend) {
    const Sge sge = a.sge(0, bytes);
    return a.engine.post_send(qa, {.wr_id = id,
                                   .opcode = opcode,
                                   .flags = send_flag::kSignaled,
                                   .sges = {&sge, 1},
                                   .immediate = 77,
                                   .remote_qpn = Qpn{0x22},
                                   .remote_qkey = qkey,
                                   .ah = ah});
  }
  void receive(std::uint64_t id, std::size_t bytes) {
    const Sge sge = b.sge(0, bytes);
    b.engine.post_recv(qb, {.wr_id = id, .sges = {&sge, 1}}).value();
  }
  Wire wire;
  Host a, b;
  QpHandle qa, qb;
  AhHandle ah;
};

TEST(UdTransport, ASmallDatagramIsCopiedWhenItIsPosted) {
  UdPair p;
  const std::vector<std::byte> before(p.a.memory.begin(), p.a.memory.begin() + 100);
  p.receive(7, 200);
  ASSERT_TRUE(p.send(1, 100));
  std::ranges::fill(p.a.memory.first(100), std::byte{0xff});
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");
  EXPECT_TRUE(std::ranges::equal(p.b.memory.subspan(UdTransport::kGrhBytes, 100), before));
}

TEST(UdTransport, ASmallDatagramFailsWithoutItsRegion) {
  UdPair p;
  ASSERT_TRUE(p.send(1, 100));
  ASSERT_TRUE(p.a.engine.deregister_mr(p.a.mr.handle));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1:local protection error");
}

TEST(UdTransport, CarriesAMessageWithTheNetworkHeaderBeforeIt) {
  UdPair p;
  p.receive(7, 200);
  ASSERT_TRUE(p.send(1, 100, kUdQkey, WrOpcode::kSendImm));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");
  const auto got = p.b.poll();
  ASSERT_EQ(text(got), "7");
  EXPECT_EQ(got[0].byte_len, 140u);
  EXPECT_EQ(got[0].source_qpn, Qpn{0x11});
  EXPECT_EQ(got[0].flags, wc_flag::kGrh | wc_flag::kWithImm);
  EXPECT_EQ(got[0].immediate, 77u);
  EXPECT_EQ(got[0].service_level, 10);  // IPv4
  EXPECT_TRUE(std::equal(p.a.memory.begin(), p.a.memory.begin() + 100, p.b.memory.begin() + 40));
  const std::span<const std::byte> header(p.b.memory.data(), 40);
  EXPECT_TRUE(std::ranges::all_of(header.first(20), [](auto x) { return x == std::byte{0}; }));
  const auto ip = wire::decode<wire::Ipv4Header>(header.subspan(20)).value();
  EXPECT_EQ(ip.source, 0x0a000001u);
  EXPECT_EQ(ip.destination, 0x0a000002u);
  EXPECT_EQ(ip.tos, 5u);
  EXPECT_EQ(ip.ttl, 9u);
  EXPECT_EQ(ip.total_length, 20 + 8 + 12 + 8 + 4 + 100 + 4);
  EXPECT_EQ(wire::ipv4_checksum(header.subspan(20)), 0u);
}

TEST(UdTransport, DeliversACompleteIpv6Header) {
  Host host(1);
  const QpHandle qp = create_ud(host, Qpn{0x11});
  const Sge sge = host.sge(0, 100);
  host.engine.post_recv(qp, {.wr_id = 1, .sges = {&sge, 1}}).value();
  Gid from, to;
  from.bytes.fill(std::byte{0x11});
  to.bytes.fill(std::byte{0x22});
  wire::TransportPacket packet;
  packet.bth = {.opcode = wire::Opcode::kUdSendOnly, .destination_qpn = Qpn{0x11}};
  packet.deth = {kUdQkey, Qpn{5}};
  host.engine.receive({{.source = from, .destination = to}, packet_of(packet, 3)}, {});
  const auto got = host.poll();
  ASSERT_EQ(text(got), "1");
  EXPECT_EQ(got[0].service_level, 9);  // IPv6
  const auto ip = wire::decode<wire::Ipv6Header>(host.memory).value();
  EXPECT_EQ(ip.source, from);
  EXPECT_EQ(ip.destination, to);
  EXPECT_EQ(ip.payload_length, 8 + 12 + 8 + 4 + 4);
  EXPECT_EQ(host.memory[42], std::byte{0x5a});
  EXPECT_EQ(host.memory[43], std::byte{0});
}

TEST(UdTransport, DropsADatagramWithAWrongQkey) {
  UdPair p;
  p.receive(7, 200);
  ASSERT_TRUE(p.send(1, 10, Qkey{1}));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");  // the sender does not notice
  EXPECT_EQ(text(p.b.poll()), "");
  EXPECT_EQ(p.b.engine.counters()[Counter::kDropBadQkey], 1u);
}

TEST(UdTransport, AQkeyWithTheTopBitSelectsTheQkeyOfTheQp) {
  UdPair p;
  p.receive(7, 200);
  ASSERT_TRUE(p.send(1, 10, Qkey{0x80000000}));
  p.wire.run();
  EXPECT_EQ(text(p.b.poll()), "7");
}

TEST(UdTransport, DropsADatagramWithoutAReceiveThatIsLargeEnough) {
  UdPair p;
  ASSERT_TRUE(p.send(1, 10));
  p.wire.run();
  EXPECT_EQ(p.b.engine.counters()[Counter::kDropNoReceive], 1u);
  p.receive(7, 49);
  ASSERT_TRUE(p.send(2, 10));
  p.wire.run();
  EXPECT_EQ(p.b.engine.counters()[Counter::kDropTooLong], 1u);
  ASSERT_TRUE(p.send(3, 9));
  p.wire.run();
  EXPECT_EQ(text(p.b.poll()), "7");
}

// Checks that a send completes only after its burst was sent.  A program may exit when it sees the
// completion, and then unsent packets would be lost.
void expect_completion_when_sent(UdPair& p) {
  link::Burst burst;
  EXPECT_TRUE(p.a.engine.transmit(burst, p.wire.now));
  EXPECT_EQ(burst.packets().size(), 2u);
  EXPECT_EQ(text(p.a.poll()), "");
  burst.clear();  // an empty burst means that the packets were sent
  EXPECT_FALSE(p.a.engine.transmit(burst, p.wire.now));
  EXPECT_EQ(text(p.a.poll()), "1 2");
}

TEST(UdTransport, ASendCompletesWhenItsBurstIsSent) {
  UdPair p;
  ASSERT_TRUE(p.send(1, 10));
  ASSERT_TRUE(p.send(2, 10));
  expect_completion_when_sent(p);
}

TEST(UdTransport, ASentDatagramCompletesInTheErrorState) {
  UdPair p;
  ASSERT_TRUE(p.send(1, 10));
  link::Burst burst;
  EXPECT_TRUE(p.a.engine.transmit(burst, p.wire.now));
  ASSERT_TRUE(p.send(2, 10));
  p.a.engine.modify_qp(p.qa, {.state = QpState::kError}, attribute::kState, {}).value();
  EXPECT_EQ(text(p.a.poll()), "1 2:flushed");
}

TEST(UdTransport, AFailedSendStopsOnlyTheSendQueue) {
  UdPair p;
  ASSERT_TRUE(p.send(1, 10));
  ASSERT_TRUE(p.send(2, 4097));
  ASSERT_TRUE(p.send(3, 10));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1 2:local length error 3:flushed");
  EXPECT_EQ(p.a.engine.query_qp(p.qa).value().attributes.state, QpState::kSqe);
  ASSERT_TRUE(p.send(4, 10));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "4:flushed");
  QpAttributes a;
  a.state = QpState::kRts;
  ASSERT_TRUE(p.a.engine.modify_qp(p.qa, a, attribute::kState, {}));
  p.receive(7, 4136);
  ASSERT_TRUE(p.send(5, 4096));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "5");
  EXPECT_EQ(text(p.b.poll()), "7");
}

TEST(UdTransport, ACqOverflowStopsTheSendQueueAndFlushesEachSendOnce) {
  UdPair p;
  p.a.engine.resize_cq(p.a.cq, 2).value();
  for (std::uint64_t id = 1; id <= 6; ++id) ASSERT_TRUE(p.send(id, 10));
  p.wire.run();
  EXPECT_EQ(p.a.engine.query_qp(p.qa).value().attributes.state, QpState::kSqe);
  EXPECT_EQ(text(p.a.poll()), "1 2");
  ASSERT_TRUE(p.send(7, 10));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "7:flushed");
  EXPECT_EQ(p.a.engine.free_send_slots(p.qa).value(), 16u);
}

// The QP is in the error state, and waits until it may flush its requests.
TEST(UdTransport, ACqOverflowInTheErrorStateDoesNotLeaveTheErrorState) {
  UdPair p(kRxe);
  p.a.engine.resize_cq(p.a.cq, 2).value();
  for (std::uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(p.send(id, 10));
  link::Burst burst;
  EXPECT_TRUE(p.a.engine.transmit(burst, p.wire.now));
  const auto state = [&] { return p.a.engine.query_qp(p.qa).value().attributes.state; };
  p.a.engine.modify_qp(p.qa, {.state = QpState::kError}, attribute::kState, p.wire.now).value();
  p.wire.drain(p.a);
  EXPECT_EQ(state(), QpState::kError);
  p.wire.run();
  EXPECT_EQ(state(), QpState::kError);
  EXPECT_EQ(text(p.a.poll()), "1 2");
}

TEST(UdTransport, ASendWithABadKeyFails) {
  UdPair p;
  const Sge bad{p.a.address(0), 10, 12345};
  ASSERT_TRUE(p.a.engine.post_send(p.qa, {.wr_id = 1, .sges = {&bad, 1}, .ah = p.ah}));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1:local protection error");
}

TEST(UdTransport, RefusesRequestsThatUdDoesNotSupport) {
  UdPair p;
  const auto code = [&](const SendRequest& r) {
    return p.a.engine.post_send(p.qa, r).error().code;
  };
  EXPECT_EQ(code({.opcode = WrOpcode::kWrite, .ah = p.ah}), Errc::kInvalidArgument);
  EXPECT_EQ(code({}), Errc::kBadHandle);
  const PdHandle pd = p.a.engine.create_pd().value();
  EXPECT_EQ(code({.ah = p.a.engine.create_ah(pd, {}).value()}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.remote_qpn = Qpn{0x1000000}, .ah = p.ah}), Errc::kInvalidArgument);
}

}  // namespace
}  // namespace verbena::hca
