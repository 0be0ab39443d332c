// Tests direct accesses: the initiator itself carries out WRITEs and READs in the memory of the
// target.  The target need not run for that.
#include "hca/direct_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "hca/operations.h"
#include "hca/test_lanes.h"
#include "sim/seeds.h"

namespace verbena::hca {
namespace {

using namespace testing;
using ::testing::IsEmpty;

constexpr std::size_t kRemoteOffset = DirectPair::kRemoteOffset;

TEST(DirectAccess, WriteCompletesWhileTheTargetSleeps) {
  DirectPair pair;
  pair.stopped_b = true;
  pair.a.fill(0, 100'000, 3);
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 100'000).value();
  pair.wire.run(kSecond);
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_TRUE(pair.same(0, kRemoteOffset, 100'000));
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 1U);
  EXPECT_EQ(pair.count_at_a(Counter::kDirectBytes), 100'000U);
}

TEST(DirectAccess, ReadCompletesWhileTheTargetSleeps) {
  DirectPair pair;
  pair.stopped_b = true;
  pair.b.fill(kRemoteOffset, 100'000, 5);
  pair.rdma(WrOpcode::kRead, 1, 0, kRemoteOffset, 100'000).value();
  pair.wire.run(kSecond);
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_TRUE(pair.same(0, kRemoteOffset, 100'000));
  EXPECT_EQ(pair.count_at_a(Counter::kDirectReads), 1U);
}

TEST(DirectAccess, FirstRequestOfAConnectionIsSentAsPackets) {
  LanePair pair;
  pair.attach(true);
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 8).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_EQ(pair.a.engine.counters()[Counter::kDirectWrites], 0U);
  EXPECT_EQ(pair.a.engine.counters()[Counter::kDirectRefused], 0U);
}

TEST(DirectAccess, TargetCountsTheRequestAndAcceptsLaterPackets) {
  DirectPair pair;
  pair.a.fill(0, 5000, 3);
  pair.stopped_b = true;
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 5000).value();
  pair.wire.run(kSecond);
  pair.receive(9, 1'000'000, 5000).value();
  pair.send(2, 0, 5000).value();
  pair.stopped_b = false;
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2");
  EXPECT_EQ(text(pair.b.poll()), "9");
  EXPECT_TRUE(pair.same(0, 1'000'000, 5000));
  EXPECT_EQ(pair.count_at_b(Counter::kDirectWrites), 1U);
  EXPECT_EQ(pair.count_at_b(Counter::kDirectBytes), 5000U);
  EXPECT_EQ(pair.count_at_a(Counter::kRetransmissions), 0U);
  const Psn sent = pair.a.engine.query_qp(pair.qa).value().attributes.sq_psn;
  EXPECT_EQ(pair.b.engine.query_qp(pair.qb).value().attributes.rq_psn, sent);
}

TEST(DirectAccess, LongRequestIsCopiedInSeveralParts) {
  DirectPair pair;
  constexpr std::size_t kBytes = 4 * DirectAccess::kBytesMax - 100;
  pair.a.fill(0, kBytes, 3);
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, kBytes).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_TRUE(pair.same(0, kRemoteOffset, kBytes));
  EXPECT_EQ(pair.memory_of_b.copies, 4U);
}

TEST(DirectAccess, OneCallOfTransmitCopiesALimitedNumberOfBytes) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  DirectPair pair;
  for (std::uint64_t i = 0; i < 10; ++i) {
    pair.rdma(WrOpcode::kWrite, i, 0, kRemoteOffset, kBytes).value();
  }
  link::Burst burst;
  EXPECT_TRUE(pair.a.engine.transmit(burst, pair.wire.now));
  EXPECT_LE(pair.memory_of_b.copies, 2 * kBytes / DirectAccess::kBytesMax);
  pair.wire.run();
  EXPECT_EQ(pair.a.poll().size(), 10U);
}

TEST(DirectAccess, ShortRequestsAfterUnfinishedRequestsAreSentAsPackets) {
  DirectPair pair;
  for (std::uint64_t i = 0; i < 10; ++i) {
    pair.receive(i, 1'000'000, 100).value();
    pair.send(100 + i, 0, 100).value();
    pair.rdma(WrOpcode::kWrite, 200 + i, 0, kRemoteOffset, 100).value();
  }
  pair.wire.run();
  EXPECT_EQ(pair.a.poll().size(), 20U);
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 0U);
}

// Posts short WRITEs without polling.  Posts each WRITE when the WRITE before it is complete.
// Returns the number of WRITEs that were carried out directly.
std::uint64_t write_one_by_one(DirectPair& pair, std::uint64_t count) {
  const std::uint64_t before = pair.count_at_a(Counter::kDirectWrites);
  for (std::uint64_t i = 0; i < count; ++i) {
    pair.rdma(WrOpcode::kWrite, i, 0, kRemoteOffset, 8).value();
    pair.wire.run();
  }
  return pair.count_at_a(Counter::kDirectWrites) - before;
}

TEST(DirectAccess, StreamOfShortWritesIsSentAsPackets) {
  DirectPair pair;
  constexpr std::uint64_t kSeries = ShortWrites::kSeriesMax;
  pair.a.poll();  // ends the series of the first request
  EXPECT_EQ(write_one_by_one(pair, 4 * kSeries), kSeries) << "the first WRITEs are no stream yet";
  std::array<WorkCompletion, 1> completion;
  EXPECT_EQ(pair.a.engine.poll_cq(pair.a.cq, completion).value(), 1U);
  EXPECT_EQ(write_one_by_one(pair, 1), 0U);
  EXPECT_EQ(pair.a.poll().size(), 4 * kSeries);
  EXPECT_EQ(write_one_by_one(pair, 4 * kSeries), 0U);
  pair.a.poll();
}

TEST(DirectAccess, SingleShortWritesAreDirectAgainSoonAfterAStream) {
  DirectPair pair;
  write_one_by_one(pair, 4 * ShortWrites::kSeriesMax);
  pair.a.poll();
  for (std::uint32_t i = 1; i < ShortWrites::kShortSeriesToEndStream; ++i) {
    EXPECT_EQ(write_one_by_one(pair, 2), 0U);
    EXPECT_EQ(pair.a.poll().size(), 2U);
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(write_one_by_one(pair, 2), 2U);
    EXPECT_EQ(pair.a.poll().size(), 2U);
  }
}

TEST(DirectAccess, ReadsAndLongerWritesAreDirectEvenInAStream) {
  DirectPair pair;
  for (std::uint64_t i = 0; i < 20; ++i) {
    pair.rdma(WrOpcode::kRead, i, 0, kRemoteOffset, 8).value();
    pair.wire.run();
    pair.rdma(WrOpcode::kWrite, i, 0, kRemoteOffset, DirectAccess::kShortWriteBytes).value();
    pair.wire.run();
  }
  EXPECT_EQ(pair.count_at_a(Counter::kDirectReads), 20U);
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 20U);
}

TEST(DirectAccess, LongRequestsWaitForEarlierRequests) {
  DirectPair pair;
  pair.a.fill(0, 100'000, 7);
  for (std::uint64_t i = 0; i < 10; ++i) {
    pair.receive(i, 1'000'000, 100).value();
    pair.send(100 + i, 0, 100).value();
    pair.rdma(WrOpcode::kWrite, 200 + i, 0, kRemoteOffset, 100'000).value();
  }
  pair.wire.run();
  EXPECT_EQ(pair.a.poll().size(), 20U);
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 10U);
  EXPECT_TRUE(pair.same(0, kRemoteOffset, 100'000));
}

TEST(DirectAccess, RequestsWithManyElementsAndInlineRequestsAreCarriedOut) {
  DirectPair pair;
  pair.a.fill(0, 200'000, 7);
  const std::array sges{pair.a.sge(0, 1), pair.a.sge(1, 0), pair.a.sge(1, 149'998),
                        pair.a.sge(149'999, 50'001)};
  SendRequest request{.wr_id = 1,
                      .opcode = WrOpcode::kWrite,
                      .flags = send_flag::kSignaled,
                      .sges = sges,
                      .remote_address = pair.b.address(kRemoteOffset),
                      .r_key = pair.b.mr.rkey};
  pair.a.engine.post_send(pair.qa, request).value();
  pair.wire.run();
  EXPECT_TRUE(pair.same(0, kRemoteOffset, 200'000));
  const Sge sge = pair.a.sge(500'000, 200);
  pair.a.fill(500'000, 200, 9);
  request.wr_id = 2;
  request.flags |= send_flag::kInline;
  request.sges = {&sge, 1};
  pair.a.engine.post_send(pair.qa, request).value();
  const std::vector<std::byte> posted(pair.a.memory.begin() + 500'000,
                                      pair.a.memory.begin() + 500'200);
  pair.a.fill(500'000, 200, 1);
  pair.wire.run();
  EXPECT_TRUE(std::equal(posted.begin(), posted.end(), pair.b.memory.begin() + kRemoteOffset));
  EXPECT_EQ(text(pair.a.poll()), "1 2");
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 2U);
}

TEST(DirectAccess, ReadsIntoANullRegionAreSentAsPackets) {
  DirectPair pair;
  const MrInfo null = pair.a.engine.register_null_mr(pair.a.pd).value();
  const std::array sges{Sge{0, 100, null.lkey}, pair.a.sge(0, 100)};
  pair.b.fill(kRemoteOffset, 200, 4);
  pair.a.engine
      .post_send(pair.qa, {.wr_id = 1,
                           .opcode = WrOpcode::kRead,
                           .flags = send_flag::kSignaled,
                           .sges = sges,
                           .remote_address = pair.b.address(kRemoteOffset),
                           .r_key = pair.b.mr.rkey})
      .value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_TRUE(pair.same(0, kRemoteOffset + 100, 100));
  EXPECT_EQ(pair.count_at_a(Counter::kDirectReads), 0U);
}

TEST(DirectAccess, UnsignaledRequestsHaveNoCompletionAndFreeTheirSlots) {
  DirectPair pair;
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 8,
                          i % 32 == 31 ? send_flag::kSignaled : 0));
    pair.wire.run();
    ASSERT_EQ(text(pair.a.poll()), i % 32 == 31 ? "1" : "");
  }
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 300U);
}

TEST(DirectAccess, FullLaneDelaysRequestsAndLosesNone) {
  constexpr std::uint64_t kRequests = 5000;  // more than fit into the ring
  DirectPair pair;
  pair.stopped_b = true;
  std::uint64_t done = 0;
  for (std::uint64_t i = 0; i < kRequests; ++i) {
    if (!pair.rdma(WrOpcode::kWrite, i, 0, kRemoteOffset, 8)) break;
    pair.wire.run(std::chrono::microseconds(1));
    done += pair.a.poll().size();
  }
  EXPECT_LT(done, kRequests);
  EXPECT_TRUE(pair.a.engine.waits_for_lane());
  pair.stopped_b = false;
  pair.wire.run();
  EXPECT_FALSE(pair.a.engine.waits_for_lane());
  pair.a.poll();
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 8).value();
  pair.wire.run();
  EXPECT_EQ(pair.count_at_b(Counter::kDropExecuted), 0U);
  EXPECT_EQ(pair.count_at_b(Counter::kDirectWrites), pair.count_at_a(Counter::kDirectWrites));
  EXPECT_EQ(pair.state_a(), QpState::kRts);
}

TEST(DirectAccess, ResponderReportsMemoryThatTheTargetHasUnmapped) {
  DirectPair pair;
  pair.memory_of_b.is_unmapped = true;
  pair.b.engine.set_memory_guard(
      [](const void*, std::size_t, bool, void (*)(void*), void*) { return false; });
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 1000).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1:remote access error");
  EXPECT_EQ(pair.state_b(), QpState::kError);
  EXPECT_EQ(pair.count_at_a(Counter::kDirectRefused), 1U);
}

TEST(DirectAccess, DeregisteringTheRegionEndsARequestUnderWay) {
  DirectPair pair;
  const std::uint64_t address = pair.b.address(kRemoteOffset);
  const MrInfo region =
      pair.b.engine.register_mr(pair.b.pd, address, 1'000'000, address, Host::kAllAccess).value();
  pair.memory_of_b.before_copy = [&] {
    if (pair.memory_of_b.copies == 2) pair.b.engine.deregister_mr(region.handle).value();
  };
  const Sge sge = pair.a.sge(0, 1'000'000);
  pair.a.engine
      .post_send(pair.qa, {.wr_id = 1,
                           .opcode = WrOpcode::kWrite,
                           .flags = send_flag::kSignaled,
                           .sges = {&sge, 1},
                           .remote_address = address,
                           .r_key = region.rkey})
      .value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1:remote access error");
  EXPECT_EQ(pair.memory_of_b.copies, 3U) << "only the copy that has begun is finished";
}

TEST(DirectAccess, AccessOutsideTheNewRangeOfAReregisteredRegionIsRefused) {
  DirectPair pair;
  const std::uint64_t address = pair.b.address(kRemoteOffset);
  const MrInfo region =
      pair.b.engine.register_mr(pair.b.pd, address, 10'000, address, Host::kAllAccess).value();
  pair.b.engine
      .reregister_mr(region.handle,
                     {.what = Engine::MrChange::kTranslation, .address = address, .length = 5000})
      .value();
  const Sge sge = pair.a.sge(0, 100);
  SendRequest request{.wr_id = 1,
                      .opcode = WrOpcode::kWrite,
                      .flags = send_flag::kSignaled,
                      .sges = {&sge, 1},
                      .remote_address = address + 4900,
                      .r_key = region.rkey};
  pair.a.engine.post_send(pair.qa, request).value();
  pair.wire.run();
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 1U);
  request.wr_id = 2;
  request.remote_address += 1;
  pair.a.engine.post_send(pair.qa, request).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2:remote access error");
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 1U);
}

TEST(DirectAccess, MemoryOfATargetInTheErrorStateIsNotAccessed) {
  DirectPair pair({.timeout = 1, .retry_count = 1});
  QpAttributes error;
  error.state = QpState::kError;
  pair.b.engine.modify_qp(pair.qb, error, attribute::kState, pair.wire.now).value();
  pair.a.fill(0, 8, 3);
  pair.b.fill(kRemoteOffset, 8, 9);
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 8).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1:retries exceeded");
  EXPECT_FALSE(pair.same(0, kRemoteOffset, 8));
}

// The target connects its queue pair again while the initiator keeps its old connection.
TEST(DirectAccess, OldConnectionCannotUseTheRightsOfANewConnection) {
  DirectPair pair({.timeout = 1, .retry_count = 1});
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 8).value();
  pair.wire.run();
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 1U);
  QpAttributes reset;
  reset.state = QpState::kReset;
  pair.b.engine.modify_qp(pair.qb, reset, attribute::kState, pair.wire.now).value();
  bring_to_state(pair.b, pair.qb,
                 attributes_for(pair.b, pair.a, pair.o, Qpn{0x11}, Psn{1}, Psn{77'000}),
                 QpState::kRts);
  pair.a.fill(0, 8, 3);
  pair.b.fill(kRemoteOffset, 8, 9);
  pair.rdma(WrOpcode::kWrite, 2, 0, kRemoteOffset, 8).value();
  pair.wire.run();
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 1U);
  EXPECT_FALSE(pair.same(0, kRemoteOffset, 8));
}

TEST(DirectAccess, RecordsThatDoNotMatchTheConnectionAreDropped) {
  DirectPair pair;
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 8).value();
  pair.wire.run();
  const auto row = pair.table_b.table.qp(0x22);
  ASSERT_TRUE(row);
  const link::ExecutedRecord good{.generation = row->generation,
                                  .target_qpn = 0x22,
                                  .initiator_qpn = 0x11,
                                  .first_psn = row->expected_psn,
                                  .psns = 1,
                                  .bytes = 8};
  const auto receive_with = [&](auto member, auto value) {
    link::ExecutedRecord record = good;
    record.*member = value;
    pair.b.engine.receive(record, pair.wire.now);
  };
  receive_with(&link::ExecutedRecord::generation, row->generation + 1);
  receive_with(&link::ExecutedRecord::target_qpn, 0x23u);
  receive_with(&link::ExecutedRecord::initiator_qpn, 0x12u);
  receive_with(&link::ExecutedRecord::first_psn, row->expected_psn + 1);
  receive_with(&link::ExecutedRecord::psns, 0x800000u);
  EXPECT_EQ(pair.count_at_b(Counter::kDropExecuted), 5U);
  EXPECT_EQ(pair.table_b.table.qp(0x22)->expected_psn, row->expected_psn);
  pair.b.engine.receive(good, pair.wire.now);
  EXPECT_EQ(pair.table_b.table.qp(0x22)->expected_psn, row->expected_psn + 1);
}

TEST(DirectAccess, RecordInTheMiddleOfAMessageIsDropped) {
  DirectPair pair;
  const auto row = pair.table_b.table.qp(0x22);
  wire::TransportPacket packet;
  packet.bth.opcode = wire::Opcode::kRcWriteFirst;
  packet.bth.psn = Psn{row->expected_psn};
  packet.bth.destination_qpn = Qpn{0x22};
  packet.reth = {pair.b.address(kRemoteOffset), pair.b.mr.rkey, 2000};
  pair.b.engine.receive({{.source = gid_of(1), .destination = gid_of(2)}, packet_of(packet, 1024)},
                        pair.wire.now);
  pair.b.engine.receive(link::ExecutedRecord{.generation = row->generation,
                                             .target_qpn = 0x22,
                                             .initiator_qpn = 0x11,
                                             .first_psn = row->expected_psn + 1,
                                             .psns = 1,
                                             .bytes = 8},
                        pair.wire.now);
  EXPECT_EQ(pair.count_at_b(Counter::kDropExecuted), 1U);
}

TEST(DirectAccess, NoRequestStartsWhileTheSendQueueDrains) {
  DirectPair pair;
  QpAttributes drain;
  drain.state = QpState::kSqd;
  pair.a.engine.modify_qp(pair.qa, drain, attribute::kState, pair.wire.now).value();
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 8).value();
  pair.wire.run();
  EXPECT_THAT(pair.a.poll(), IsEmpty());
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 0U);
  QpAttributes ready;
  ready.state = QpState::kRts;
  pair.a.engine.modify_qp(pair.qa, ready, attribute::kState, pair.wire.now).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 1U);
}

TEST(DirectAccess, PeerThatNoLongerAllowsAccessGetsPackets) {
  DirectPair pair;
  pair.lanes_b.for_each([](link::Lanes::Id, link::Lane& lane) { lane.allow_access(false); });
  pair.rdma(WrOpcode::kWrite, 1, 0, kRemoteOffset, 8).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_EQ(pair.count_at_a(Counter::kDirectWrites), 0U);
}

// ---- equality with packets ----------------------------------------------------------------------

struct RunResult {
  std::string completions_a, completions_b;
  std::vector<std::byte> memory_a, memory_b;
  std::uint64_t direct_bytes = 0;
};

// Makes random requests with pauses.  The seed determines the whole run.
RunResult run_random(std::uint64_t seed, bool direct) {
  Random random(seed);
  LanePair pair({.caps = {.max_send_wr = 256,
                          .max_recv_wr = 256,
                          .max_send_sge = 4,
                          .max_recv_sge = 4,
                          .max_inline_bytes = 256}});
  pair.attach(direct);
  constexpr std::size_t kHalf = 1'000'000;
  constexpr std::size_t kLocalBytes = 1024;  // so small that most requests overlap
  pair.a.fill(0, 2 * kHalf, static_cast<std::uint8_t>(seed));
  pair.b.fill(0, 2 * kHalf, static_cast<std::uint8_t>(seed + 1));
  RunResult result;
  for (std::uint64_t i = 0; i < 60; ++i) {
    static constexpr std::array kOpcodes{WrOpcode::kSend,     WrOpcode::kWrite, WrOpcode::kRead,
                                         WrOpcode::kWriteImm, WrOpcode::kWrite, WrOpcode::kRead,
                                         WrOpcode::kFetchAdd};
    const WrOpcode opcode = kOpcodes[random.next() % kOpcodes.size()];
    const std::size_t bytes = opcode == WrOpcode::kFetchAdd ? 8
                              : random.next() % 2 == 0      ? random.next() % 300
                                                            : random.next() % 100'000;
    // Many requests send bytes that earlier READs and atomics have brought.
    const std::size_t local_offset = random.next() % (kLocalBytes / 8) * 8;
    const std::size_t remote_offset = random.next() % (kHalf / 16) * 8;
    // A fence lets each request send what the READs before it have brought, and prevents later
    // requests from changing the result of a READ.
    const std::uint32_t flags = send_flag::kSignaled | send_flag::kFence;
    if (opcode == WrOpcode::kSend || opcode == WrOpcode::kWriteImm) {
      pair.receive(i, remote_offset, bytes).value();
    }
    pair.rdma(opcode, i, local_offset, remote_offset, bytes, flags).value();
    pair.stopped_b = random.next() % 4 == 0;
    const std::uint64_t pause = random.next() % 3;
    if (pause == 1) pair.wire.run(std::chrono::microseconds(random.next() % 50));
    if (pause == 2) pair.wire.run(kSecond);
    if (seed % 8 == 0 && i == 50) pair.b.engine.deregister_mr(pair.b.mr.handle).value();
  }
  pair.stopped_b = false;
  pair.wire.run();
  result.completions_a = text(pair.a.poll());
  result.completions_b = text(pair.b.poll());
  result.memory_a.assign(pair.a.memory.begin(), pair.a.memory.begin() + 2 * kHalf);
  result.memory_b.assign(pair.b.memory.begin(), pair.b.memory.begin() + 2 * kHalf);
  result.direct_bytes = pair.a.engine.counters()[Counter::kDirectBytes];
  return result;
}

TEST(DirectAccess, RandomRequestsHaveTheSameResultsAsPackets) {
  std::uint64_t direct_bytes = 0;
  const auto seeds = sim::seeds(100);
  for (const std::uint64_t seed : seeds) {
    SCOPED_TRACE(seed);
    const RunResult packets = run_random(seed, false);
    const RunResult direct = run_random(seed, true);
    direct_bytes += direct.direct_bytes;
    EXPECT_EQ(packets.direct_bytes, 0U);
    if (seed % 8 == 0) continue;  // the error does not come at the same time in both runs
    ASSERT_EQ(direct.completions_a, packets.completions_a);
    ASSERT_EQ(direct.completions_b, packets.completions_b);
    ASSERT_TRUE(direct.memory_a == packets.memory_a);
    ASSERT_TRUE(direct.memory_b == packets.memory_b);
  }
  EXPECT_GT(direct_bytes, 300'000 * seeds.size());
}

}  // namespace
}  // namespace verbena::hca
