// Runs queue pairs over lanes (link/lane.h), or over the wire and lanes alternately.
#include "link/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "hca/test_lanes.h"

namespace verbena::hca {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HcaLanes, SendWriteReadAndAtomicNeedNoPacketOnTheWire) {
  LanePair pair;
  pair.attach();
  pair.a.fill(0, 300'000, 1);
  pair.b.fill(2'000'000, 300'000, 9);
  pair.receive(1, 1'000'000, 300'000).value();
  pair.send(2, 0, 300'000).value();
  pair.rdma(WrOpcode::kWrite, 3, 0, 1'500'000, 300'000).value();
  pair.rdma(WrOpcode::kRead, 4, 2'500'000, 2'000'000, 300'000).value();
  pair.rdma(WrOpcode::kFetchAdd, 5, 3'000'000, 3'000'000, 8).value();
  pair.wire.run();
  EXPECT_EQ(pair.wire.count, 0U);
  std::vector<std::uint64_t> ids;
  for (const WorkCompletion& completion : pair.a.poll()) {
    EXPECT_EQ(completion.status, WcStatus::kSuccess);
    ids.push_back(completion.wr_id);
  }
  EXPECT_THAT(ids, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(pair.b.poll().size(), 1U);
  EXPECT_TRUE(pair.same(0, 1'000'000, 300'000));
  EXPECT_TRUE(pair.same(0, 1'500'000, 300'000));
  EXPECT_TRUE(pair.same(2'500'000, 2'000'000, 300'000));
  EXPECT_EQ(pair.a.engine.counters()[Counter::kRetransmissions], 0U);
}

class FullRing : public ::testing::TestWithParam<QpType> {};

TEST_P(FullRing, DelaysPacketsAndLosesNone) {
  LanePair pair({.type = GetParam()});
  pair.attach();
  pair.stopped_b = true;
  pair.a.fill(0, 1'000'000, 3);
  pair.rdma(WrOpcode::kWrite, 1, 0, 2'000'000, 1'000'000).value();
  pair.wire.run(kSecond);
  EXPECT_TRUE(pair.a.engine.waits_for_lane());
  EXPECT_THAT(pair.a.poll(), IsEmpty());
  pair.stopped_b = false;
  pair.wire.run();
  EXPECT_FALSE(pair.a.engine.waits_for_lane());
  EXPECT_EQ(pair.a.poll().size(), 1U);
  EXPECT_TRUE(pair.same(0, 2'000'000, 1'000'000));
}

INSTANTIATE_TEST_SUITE_P(Hca, FullRing, ::testing::Values(QpType::kRc, QpType::kUc));

// A peer that does not read its lane may be a stopped process.  An adapter would acknowledge the
// packets for such a process, so the requests must not fail.
TEST(HcaLanes, RequestsWaitForAStoppedPeerLongerThanAllRetries) {
  LanePair pair({.retry_count = 2});
  pair.attach();
  pair.stopped_b = true;
  pair.rdma(WrOpcode::kWrite, 1, 0, 2'000'000, 100).value();
  pair.wire.run(100 * kSecond);
  EXPECT_THAT(pair.a.poll(), IsEmpty());
  EXPECT_EQ(pair.a.engine.counters()[Counter::kTimeouts], 0U);
  pair.stopped_b = false;
  pair.wire.run();
  const auto completions = pair.a.poll();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status, WcStatus::kSuccess);
}

TEST(HcaLanes, RequestsToAPeerThatIsNotReadyAreRetried) {
  LanePair pair;
  pair.attach();
  const QpHandle late_qp = create_connected_qp(pair.b, pair.o, Qpn{0x33});
  const QpHandle early_qp = create_connected_qp(pair.a, pair.o, Qpn{0x44});
  bring_to_state(pair.a, early_qp,
                 attributes_for(pair.a, pair.b, pair.o, Qpn{0x33}, Psn{10}, Psn{20}),
                 QpState::kRts);
  const Sge sge = pair.a.sge(0, 64);
  pair.a.engine
      .post_send(early_qp, {.wr_id = 1,
                            .opcode = WrOpcode::kWrite,
                            .flags = send_flag::kSignaled,
                            .sges = {&sge, 1},
                            .remote_address = pair.b.address(0),
                            .r_key = pair.b.mr.rkey})
      .value();
  pair.wire.run(std::chrono::milliseconds(50));
  EXPECT_THAT(pair.a.poll(), IsEmpty());
  bring_to_state(pair.b, late_qp,
                 attributes_for(pair.b, pair.a, pair.o, Qpn{0x44}, Psn{20}, Psn{10}),
                 QpState::kRts);
  pair.wire.run();
  EXPECT_EQ(pair.a.poll().size(), 1U);
}

TEST(HcaLanes, RequestsToADeadPeerFailAfterItsLaneIsRemoved) {
  LanePair pair({.retry_count = 1});
  pair.attach();
  pair.stopped_b = true;
  pair.rdma(WrOpcode::kWrite, 1, 0, 2'000'000, 100).value();
  pair.wire.run(kSecond);
  pair.remove();
  pair.wire.unreachable.insert(gid_of(2));
  pair.wire.run();
  const auto completions = pair.a.poll();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status, WcStatus::kRetryExceeded);
}

TEST(HcaLanes, PeerWithoutAPostedReceiveMakesTheSenderRetry) {
  LanePair pair;
  pair.attach();
  pair.a.fill(0, 2000, 4);
  pair.send(1, 0, 2000).value();
  pair.wire.run(std::chrono::milliseconds(5));
  EXPECT_GT(pair.a.engine.counters()[Counter::kRnrNaksIn], 0U);
  pair.receive(2, 1'000'000, 2000).value();
  pair.wire.run();
  EXPECT_EQ(pair.a.poll().size(), 1U);
  EXPECT_TRUE(pair.same(0, 1'000'000, 2000));
}

TEST(HcaLanes, ForbiddenAccessIsRefusedAsOnTheWire) {
  LanePair pair;
  pair.attach();
  const Sge sge = pair.a.sge(0, 64);
  pair.a.engine
      .post_send(pair.qa, {.wr_id = 1,
                           .opcode = WrOpcode::kWrite,
                           .flags = send_flag::kSignaled,
                           .sges = {&sge, 1},
                           .remote_address = pair.b.address(0),
                           .r_key = pair.b.mr.rkey + 1})
      .value();
  pair.wire.run();
  const auto completions = pair.a.poll();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status, WcStatus::kRemoteAccessError);
  EXPECT_EQ(pair.state_b(), QpState::kError);
}

// Host a sends by an uplink, whose stream is at a high position, until it has a lane to host b.
TEST(HcaLanes, APacketThatIsLostBehindTheUplinkIsSentAgainByTheNewLane) {
  LanePair pair;
  constexpr link::Lanes::Id kUplink = 8;
  const auto pages = std::make_unique<LanePair::Page[]>(LanePair::kPages);
  const auto bytes = std::as_writable_bytes(std::span(pages.get(), LanePair::kPages));
  pair.lanes_a.add(kUplink, *link::Lane::attach(bytes, link::Lane::Side::kFirst), {}).value();
  pair.lanes_a.set_uplink(kUplink);
  link::Lane forwarder = *link::Lane::attach(bytes, link::Lane::Side::kSecond);
  bool loses_packets = false;
  pair.wire.lanes = [&, lanes = pair.wire.lanes] {
    const std::size_t packets = forwarder.receive(64, [&](const link::Arrival& arrival) {
      if (!loses_packets) pair.b.engine.receive(arrival, pair.wire.now);
    });
    forwarder.finish();
    return lanes() || packets != 0;
  };
  pair.rdma(WrOpcode::kWrite, 1, 0, 2'000'000, 300'000).value();
  pair.wire.run();
  ASSERT_EQ(pair.a.poll().size(), 1U);
  loses_packets = true;
  pair.rdma(WrOpcode::kWrite, 2, 0, 2'000'000, 100).value();
  pair.wire.run(std::chrono::milliseconds(1));
  pair.attach();
  // The answer to this packet makes host a choose the lane.
  const Sge sge = pair.b.sge(0, 8);
  pair.b.engine
      .post_send(pair.qb, {.wr_id = 3,
                           .opcode = WrOpcode::kWrite,
                           .sges = {&sge, 1},
                           .remote_address = pair.a.address(0),
                           .r_key = pair.a.mr.rkey})
      .value();
  pair.wire.run();
  const auto completions = pair.a.poll();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status, WcStatus::kSuccess);
}

// The seed determines when the lane is attached and removed, and which packets the wire loses.
TEST(HcaLanes, StreamsSwitchBetweenWireAndLaneWithoutLosingBytes) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    LanePair pair;
    pair.wire.faults = [&](std::uint64_t, std::span<const std::byte>) {
      return PacketOutcome{.copies = random.next() % 20 == 0 ? 0U : 1U};
    };
    bool attached = false;
    constexpr std::size_t kBytes = 20'000;
    for (std::size_t i = 0; i < 40; ++i) {
      pair.a.fill(i * kBytes, kBytes, static_cast<std::uint8_t>(seed + i));
      pair.receive(i, i * kBytes, kBytes).value();
      pair.send(i, i * kBytes, kBytes).value();
      if (random.next() % 3 == 0) pair.wire.run(std::chrono::microseconds(random.next() % 200));
      if (random.next() % 4 == 0) {
        if (!attached) pair.attach();
        if (attached) {
          pair.remove();
          std::fill_n(pair.pages.get(), LanePair::kPages, LanePair::Page{});
        }
        attached = !attached;
      }
    }
    pair.wire.faults = {};
    pair.wire.run();
    const auto completions = pair.a.poll();
    ASSERT_EQ(completions.size(), 40U);
    for (std::size_t i = 0; i < completions.size(); ++i) {
      EXPECT_EQ(completions[i].status, WcStatus::kSuccess);
      EXPECT_EQ(completions[i].wr_id, i);
    }
    EXPECT_TRUE(pair.same(0, 0, 40 * kBytes));
  }
}

TEST(HcaLanes, OneCallOfTransmitSendsALimitedNumberOfPackets) {
  constexpr std::uint32_t kRequests = 2000;
  constexpr std::uint64_t kPacketsMax = 300;
  LanePair pair({.caps = {.max_send_wr = kRequests, .max_send_sge = 1}});
  pair.attach();
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    pair.rdma(WrOpcode::kWrite, i, 0, 2'000'000, 8).value();
  }
  link::Burst burst;
  std::uint64_t before = 0;
  for (bool more = true; more;) {
    more = pair.a.engine.transmit(burst, pair.wire.now);
    const std::uint64_t sent = pair.a.engine.counters()[Counter::kPacketsOut];
    ASSERT_LE(sent - before, kPacketsMax);
    before = sent;
  }
  EXPECT_TRUE(burst.empty());
  EXPECT_GT(before, kPacketsMax);
}

// A host sends the acknowledgement of a message together with its program's answer.  The peer may
// poll between the two packets, and must not see the answer first.
TEST(HcaLanes, AnAcknowledgementArrivesBeforeTheAnswerThatIsSentWithIt) {
  LanePair pair;
  pair.attach();
  const Sge at_a = pair.a.sge(0, 64), at_b = pair.b.sge(0, 64);
  pair.receive(1, 0, 64).value();
  pair.a.engine.post_recv(pair.qa, {.wr_id = 2, .sges = {&at_a, 1}}).value();
  pair.send(3, 0, 64).value();
  pair.wire.drain(pair.a);
  pair.receive_from(pair.lanes_b, pair.b);
  pair.b.engine.post_send(pair.qb, {.wr_id = 4, .opcode = WrOpcode::kSend, .sges = {&at_b, 1}})
      .value();
  pair.wire.drain(pair.b);
  pair.receive_from(pair.lanes_a, pair.a);
  std::vector<std::uint64_t> ids;
  for (const WorkCompletion& completion : pair.a.poll()) ids.push_back(completion.wr_id);
  EXPECT_THAT(ids, ElementsAre(3, 2));
}

TEST(HcaLanes, UcKeepsTheLinkOfItsFirstPacket) {
  LanePair pair({.type = QpType::kUc});
  pair.receive(1, 1'000'000, 5000).value();
  pair.send(1, 0, 5000).value();
  pair.wire.run();
  const std::uint64_t packets_on_wire = pair.wire.count;
  EXPECT_EQ(packets_on_wire, 5U);
  pair.attach();
  pair.receive(2, 1'000'000, 5000).value();
  pair.send(2, 0, 5000).value();
  pair.wire.run();
  EXPECT_EQ(pair.wire.count, 2 * packets_on_wire)
      << "packets in the lane could overtake packets on the wire";
  EXPECT_EQ(pair.b.poll().size(), 2U);
}

TEST(HcaLanes, UcUsesALaneThatExistsBeforeItsFirstPacket) {
  LanePair pair({.type = QpType::kUc});
  pair.attach();
  pair.a.fill(0, 5000, 2);
  pair.receive(1, 1'000'000, 5000).value();
  pair.send(1, 0, 5000).value();
  pair.wire.run();
  EXPECT_EQ(pair.wire.count, 0U);
  EXPECT_EQ(pair.b.poll().size(), 1U);
  EXPECT_TRUE(pair.same(0, 1'000'000, 5000));
}

TEST(HcaLanes, UcChoosesItsLinkAgainWhenItsLaneIsRemoved) {
  LanePair pair({.type = QpType::kUc});
  for (std::uint64_t id = 1; id <= 2; ++id) {
    pair.attach();
    pair.a.fill(0, 5000, static_cast<std::uint8_t>(id));
    pair.receive(id, 1'000'000, 5000).value();
    pair.send(id, 0, 5000).value();
    pair.wire.run();
    EXPECT_EQ(pair.wire.count, 0U);
    EXPECT_EQ(pair.b.poll().size(), 1U);
    EXPECT_TRUE(pair.same(0, 1'000'000, 5000));
    pair.remove();
    std::fill_n(pair.pages.get(), LanePair::kPages, LanePair::Page{});
  }
}

TEST(HcaLanes, DatagramsCarryTheirNetworkHeaderOverALane) {
  LanePair pair;
  pair.attach();
  const QpHandle from = create_ud(pair.a, Qpn{0x55});
  const QpHandle to = create_ud(pair.b, Qpn{0x66});
  const auto ah = pair.a.engine.create_ah(
      pair.a.pd, {.address = {.source = gid_of(1), .destination = gid_of(2), .hop_limit = 5}});
  pair.a.fill(0, 100, 6);
  const Sge into = pair.b.sge(1000, 140);
  pair.b.engine.post_recv(to, {.wr_id = 1, .sges = {&into, 1}}).value();
  const Sge sge = pair.a.sge(0, 100);
  pair.a.engine
      .post_send(from, {.wr_id = 2,
                        .opcode = WrOpcode::kSend,
                        .flags = send_flag::kSignaled,
                        .sges = {&sge, 1},
                        .remote_qpn = Qpn{0x66},
                        .remote_qkey = kUdQkey,
                        .ah = ah.value()})
      .value();
  pair.wire.run();
  EXPECT_EQ(pair.wire.count, 0U);
  const auto received = pair.b.poll();
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(received[0].byte_len, 140U);
  EXPECT_EQ(received[0].source_qpn, Qpn{0x55});
  EXPECT_EQ(pair.b.memory[1000 + 20], std::byte{0x45}) << "the IPv4 header begins after 20 bytes";
  EXPECT_EQ(pair.b.memory[1000 + 28], std::byte{5}) << "the hop limit";
  EXPECT_TRUE(pair.same(0, 1040, 100));
}

}  // namespace
}  // namespace verbena::hca
