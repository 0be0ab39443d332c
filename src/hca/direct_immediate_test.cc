// Tests WRITEs with immediate data.  The initiator copies all bytes by direct access, except for
// those of the last packet.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "hca/test_lanes.h"
#include "sim/seeds.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr std::size_t kWriteOffset = DirectPair::kRemoteOffset;

TEST(DirectImmediate, AllPacketsExceptTheLastAreCopiedWhileTheTargetSleeps) {
  DirectPair pair;
  pair.receive(9, 1'000'000, 0).value();
  pair.a.fill(0, 100'000, 3);
  pair.stopped_b = true;
  pair.rdma(WrOpcode::kWriteImm, 1, 0, kWriteOffset, 100'000).value();
  pair.wire.run(std::chrono::milliseconds(1));
  const std::size_t copied_bytes = 100'000 / 1024 * 1024;
  EXPECT_TRUE(pair.same(0, kWriteOffset, copied_bytes));
  EXPECT_FALSE(pair.same(0, kWriteOffset, 100'000));
  EXPECT_EQ(pair.count_at_a(Counter::kDirectBytes), copied_bytes);
  EXPECT_EQ(text(pair.a.poll()), "") << "only the target's answer completes the request";

  pair.stopped_b = false;
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_TRUE(pair.same(0, kWriteOffset, 100'000));
  const auto received = pair.b.poll();
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(received[0].byte_len, 100'000U) << "the completion counts the whole message";
  EXPECT_EQ(received[0].opcode, WcOpcode::kReceiveWriteImm);
  EXPECT_EQ(pair.count_at_b(Counter::kDirectBytes), copied_bytes);
  EXPECT_EQ(pair.count_at_b(Counter::kDropExecuted), 0U);
}

TEST(DirectImmediate, WriteWithoutAReceiveRepeatsOnlyItsLastPacket) {
  DirectPair pair;
  pair.a.fill(0, 100'000, 3);
  pair.rdma(WrOpcode::kWriteImm, 1, 0, kWriteOffset, 100'000).value();
  pair.wire.run(std::chrono::milliseconds(50));
  EXPECT_GE(pair.count_at_a(Counter::kRnrNaksIn), 1U);
  EXPECT_EQ(text(pair.a.poll()), "");
  pair.receive(9, 1'000'000, 0).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_EQ(text(pair.b.poll()), "9");
  EXPECT_TRUE(pair.same(0, kWriteOffset, 100'000));
  EXPECT_EQ(pair.count_at_a(Counter::kDirectBytes), std::size_t{97} * 1024);
  EXPECT_EQ(pair.count_at_a(Counter::kRetransmissions), pair.count_at_a(Counter::kRnrNaksIn));
}

TEST(DirectImmediate, RequestsAfterAWriteWithImmediateComplete) {
  DirectPair pair;
  for (std::uint64_t i = 0; i < 3; ++i) pair.receive(i, 1'000'000, 5000).value();
  pair.a.fill(0, 300'000, 3);
  pair.rdma(WrOpcode::kWriteImm, 1, 0, kWriteOffset, 70'000).value();
  pair.rdma(WrOpcode::kWriteImm, 2, 0, kWriteOffset + 70'000, 70'001).value();
  pair.send(3, 0, 5000).value();
  pair.rdma(WrOpcode::kRead, 4, 1'000'000, kWriteOffset, 200).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2 3 4");
  EXPECT_EQ(text(pair.b.poll()), "0 1 2");
  EXPECT_TRUE(pair.same(0, kWriteOffset, 70'000));
  EXPECT_TRUE(pair.same(0, kWriteOffset + 70'000, 70'001));
}

TEST(DirectImmediate, DeregistrationBeforeTheLastPacketIsAnError) {
  DirectPair pair;
  pair.receive(9, 1'000'000, 0).value();
  pair.stopped_b = true;
  pair.rdma(WrOpcode::kWriteImm, 1, 0, kWriteOffset, 100'000).value();
  pair.wire.run(std::chrono::milliseconds(1));
  pair.b.engine.deregister_mr(pair.b.mr.handle).value();
  pair.stopped_b = false;
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1:remote access error");
  EXPECT_EQ(text(pair.b.poll()), "9:local access error");
}

TEST(DirectImmediate, ShortWriteWithImmediateIsSentAsPackets) {
  DirectPair pair;
  pair.receive(9, 1'000'000, 0).value();
  pair.rdma(WrOpcode::kWriteImm, 1, 0, kWriteOffset, DirectAccess::kImmediateBytesMin - 1).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1");
  EXPECT_EQ(pair.count_at_a(Counter::kDirectBytes), 0U);
}

TEST(DirectImmediate, InconsistentRecordsAreDropped) {
  DirectPair pair;
  const auto row = pair.table_b.table.qp(0x22);
  ASSERT_TRUE(row);
  const link::ExecutedRecord good{.generation = row->generation,
                                  .target_qpn = 0x22,
                                  .initiator_qpn = 0x11,
                                  .first_psn = row->expected_psn,
                                  .psns = 2,
                                  .bytes = 2048,
                                  .kind = link::ExecutedRecord::Kind::kWriteBeforeImmediate,
                                  .r_key = pair.b.mr.rkey,
                                  .message_bytes = 2049,
                                  .remote_address = pair.b.address(kWriteOffset)};
  const auto receive_with = [&](auto member, auto value) {
    link::ExecutedRecord record = good;
    record.*member = value;
    pair.b.engine.receive(record, pair.wire.now);
  };
  receive_with(&link::ExecutedRecord::bytes, 2047u);
  receive_with(&link::ExecutedRecord::psns, 1u);
  receive_with(&link::ExecutedRecord::message_bytes, 2048u);
  EXPECT_EQ(pair.count_at_b(Counter::kDropExecuted), 3U);
  EXPECT_EQ(pair.table_b.table.qp(0x22)->expected_psn, row->expected_psn);
  pair.b.engine.receive(good, pair.wire.now);
  EXPECT_EQ(pair.table_b.table.qp(0x22)->expected_psn, row->expected_psn + 2);
  pair.b.engine.receive(good, pair.wire.now);
  EXPECT_EQ(pair.count_at_b(Counter::kDropExecuted), 4U)
      << "the last packet of the WRITE is expected";
}

// The target forbids accesses after a part of the first request was copied, and allows them again
// for the next request.
TEST(DirectImmediate, ARefusedDirectAccessDoesNotAffectTheNextRequest) {
  for (const WrOpcode opcode : {WrOpcode::kWrite, WrOpcode::kWriteImm}) {
    DirectPair pair;
    constexpr std::size_t kBytes = 3 * DirectAccess::kBytesMax;
    const auto allow = [&](bool allowed) {
      pair.lanes_b.for_each([&](link::Lanes::Id, link::Lane& lane) { lane.allow_access(allowed); });
    };
    pair.receive(9, 1'000'000, 0).value();
    pair.a.fill(0, kBytes, 3);
    pair.memory_of_b.before_copy = [&] { allow(false); };
    pair.rdma(opcode, 1, 0, kWriteOffset, kBytes).value();
    pair.wire.run();
    EXPECT_EQ(text(pair.a.poll()), "1");
    pair.memory_of_b.before_copy = nullptr;
    EXPECT_EQ(pair.memory_of_b.copies, 1U);

    allow(true);
    pair.a.fill(0, kBytes, 4);
    pair.rdma(WrOpcode::kWrite, 2, 0, kWriteOffset, kBytes).value();
    pair.wire.run();
    EXPECT_EQ(text(pair.a.poll()), "2");
    EXPECT_EQ(pair.memory_of_b.copies, 4U);
    EXPECT_TRUE(pair.same(0, kWriteOffset, kBytes));
  }
}

}  // namespace
}  // namespace verbena::hca
