#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "hca/engine.h"
#include "hca/test_pair.h"
#include "hca/work_queue.h"

// Transfers messages of many sizes from one engine to the other: empty, around the MTU, and long.

namespace verbena::hca {
namespace {

using namespace testing;

struct Case {
  Mtu mtu;
  std::size_t bytes;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Mtu mtu : {Mtu::k256, Mtu::k1024, Mtu::k4096}) {
    const std::size_t m = bytes_of(mtu);
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, m - 1, m, m + 1,
                                    std::size_t{65535}, std::size_t{1} << 20}) {
      out.push_back({mtu, bytes});
    }
  }
  return out;
}

constexpr std::size_t kRemoteAt = 1 << 20;  // the offset of the data in the receiving host

TEST(Transfers, CarriesSendsOfManySizes) {
  for (const auto& [mtu, bytes] : cases()) {
    SCOPED_TRACE(::testing::Message() << bytes << " bytes at MTU " << bytes_of(mtu));
    Pair p({.mtu = mtu});
    p.a.fill(0, bytes, 3);
    ASSERT_TRUE(p.receive(7, kRemoteAt, bytes));
    ASSERT_TRUE(p.send(1, 0, bytes));
    p.wire.run();
    const auto sent = p.a.poll();
    ASSERT_EQ(text(sent), "1");
    EXPECT_EQ(sent[0].opcode, WcOpcode::kSend);
    const auto got = p.b.poll();
    ASSERT_EQ(text(got), "7");
    EXPECT_EQ(got[0].opcode, WcOpcode::kReceive);
    EXPECT_EQ(got[0].byte_len, bytes);
    EXPECT_EQ(got[0].qpn, Qpn{0x22});
    EXPECT_TRUE(p.same(0, kRemoteAt, bytes));
    EXPECT_EQ(p.a.engine.counters()[Counter::kRetransmissions], 0u);
  }
}

// Adapters read small requests at once, so some programs overwrite the memory after the post.
TEST(Transfers, ASmallRequestIsCopiedWhenItIsPosted) {
  constexpr std::size_t kParts = 2, kPart = kCopiedBytesMax / kParts;
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kSendImm, WrOpcode::kWrite}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    Pair p({.caps = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 1}});
    p.a.fill(0, kPart, 3);
    p.a.fill(1000, kPart, 4);
    const std::vector<std::byte> first(&p.a.memory[0], &p.a.memory[kPart]);
    const std::vector<std::byte> second(&p.a.memory[1000], &p.a.memory[1000 + kPart]);
    ASSERT_TRUE(p.receive(7, kRemoteAt, kCopiedBytesMax));
    const std::array<Sge, kParts> sges{p.a.sge(0, kPart), p.a.sge(1000, kPart)};
    p.a.engine
        .post_send(p.qa, {.wr_id = 1,
                          .opcode = opcode,
                          .flags = send_flag::kSignaled,
                          .sges = sges,
                          .remote_address = p.b.address(kRemoteAt),
                          .r_key = p.b.mr.rkey})
        .value();
    std::ranges::fill(p.a.memory.first(2000), std::byte{0xff});
    p.wire.run();
    EXPECT_EQ(text(p.a.poll()), "1");
    const auto got = p.b.memory.subspan(kRemoteAt, kCopiedBytesMax);
    EXPECT_TRUE(std::ranges::equal(got.first(kPart), first));
    EXPECT_TRUE(std::ranges::equal(got.subspan(kPart), second));
  }
}

TEST(Transfers, ASmallRequestIsRetransmittedWithTheCopiedBytes) {
  Pair p;
  p.a.fill(0, 64, 3);
  const std::vector<std::byte> before(p.a.memory.begin(), p.a.memory.begin() + 64);
  p.wire.faults = [](std::uint64_t number, std::span<const std::byte>) {
    return PacketOutcome{.copies = number == 0 ? 0u : 1u};
  };
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 1, 0, kRemoteAt, 64));
  std::ranges::fill(p.a.memory.first(64), std::byte{0xff});
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");
  EXPECT_EQ(p.a.engine.counters()[Counter::kRetransmissions], 1u);
  EXPECT_TRUE(std::ranges::equal(p.b.memory.subspan(kRemoteAt, 64), before));
}

// The keys are checked when the request is sent, although the bytes were copied at the post.
TEST(Transfers, ASmallRequestNeedsItsRegionUntilItIsSent) {
  Pair p;
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 1, 0, kRemoteAt, 64));
  ASSERT_TRUE(p.a.engine.deregister_mr(p.a.mr.handle));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1:local protection error");
}

TEST(Transfers, CarriesWritesOfManySizes) {
  for (const auto& [mtu, bytes] : cases()) {
    SCOPED_TRACE(::testing::Message() << bytes << " bytes at MTU " << bytes_of(mtu));
    Pair p({.mtu = mtu});
    p.a.fill(0, bytes, 5);
    ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 1, 0, kRemoteAt, bytes));
    p.wire.run();
    EXPECT_EQ(text(p.a.poll()), "1");
    EXPECT_EQ(text(p.b.poll()), "");
    EXPECT_TRUE(p.same(0, kRemoteAt, bytes));
    EXPECT_EQ(p.a.engine.counters()[Counter::kRetransmissions], 0u);
  }
}

TEST(Transfers, CarriesWritesWithImmediateOfManySizes) {
  for (const auto& [mtu, bytes] : cases()) {
    SCOPED_TRACE(::testing::Message() << bytes << " bytes at MTU " << bytes_of(mtu));
    Pair p({.mtu = mtu});
    p.a.fill(0, bytes, 9);
    ASSERT_TRUE(p.b.engine.post_recv(p.qb, {.wr_id = 8}));
    ASSERT_TRUE(p.rdma(WrOpcode::kWriteImm, 1, 0, kRemoteAt, bytes));
    p.wire.run();
    EXPECT_EQ(text(p.a.poll()), "1");
    const auto got = p.b.poll();
    ASSERT_EQ(text(got), "8");
    EXPECT_EQ(got[0].opcode, WcOpcode::kReceiveWriteImm);
    EXPECT_EQ(got[0].byte_len, bytes);
    EXPECT_EQ(got[0].immediate, 0x12345678u);
    EXPECT_EQ(got[0].flags, wc_flag::kWithImm);
    EXPECT_TRUE(p.same(0, kRemoteAt, bytes));
  }
}

TEST(Transfers, CarriesReadsOfManySizes) {
  for (const auto& [mtu, bytes] : cases()) {
    for (const std::uint8_t rd_atomic : {std::uint8_t{1}, std::uint8_t{4}}) {
      SCOPED_TRACE(::testing::Message() << bytes << " bytes at MTU " << bytes_of(mtu) << ", "
                                        << int{rd_atomic} << " reads at once");
      Pair p({.mtu = mtu, .rd_atomic = rd_atomic});
      p.b.fill(kRemoteAt, bytes, 11);
      ASSERT_TRUE(p.rdma(WrOpcode::kRead, 1, 0, kRemoteAt, bytes));
      p.wire.run();
      const auto done = p.a.poll();
      ASSERT_EQ(text(done), "1");
      EXPECT_EQ(done[0].opcode, WcOpcode::kRead);
      EXPECT_EQ(done[0].byte_len, bytes);
      EXPECT_TRUE(p.same(0, kRemoteAt, bytes));
      EXPECT_EQ(p.a.engine.counters()[Counter::kRetransmissions], 0u);
    }
  }
}

TEST(Transfers, CopiesInlineDataWhenItIsPosted) {
  Pair p;
  p.a.fill(0, 200, 1);
  const Sge parts[] = {{p.a.address(0), 50, 0}, {p.a.address(50), 150, 0xbad}};  // no keys needed
  ASSERT_TRUE(p.receive(7, kRemoteAt, 200));
  ASSERT_TRUE(p.a.engine.post_send(
      p.qa, {.wr_id = 1, .flags = send_flag::kInline | send_flag::kSignaled, .sges = parts}));
  const std::vector<std::byte> original(p.a.memory.begin(), p.a.memory.begin() + 200);
  p.a.fill(0, 200, 99);
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");
  EXPECT_TRUE(std::equal(original.begin(), original.end(), p.b.memory.begin() + kRemoteAt));
  const Sge big{p.a.address(0), 257, 0};
  EXPECT_EQ(
      p.a.engine.post_send(p.qa, {.flags = send_flag::kInline, .sges = {&big, 1}}).error().code,
      Errc::kInvalidArgument);
}

TEST(Transfers, GathersAndScattersAcrossPackets) {
  Pair p({.mtu = Mtu::k256});
  p.a.fill(0, 1000, 1);
  // Sends 1000 bytes from 4 elements, one of them empty, into 4 elements of other sizes.
  const Sge from[] = {p.a.sge(0, 3), p.a.sge(500, 0), p.a.sge(3, 600), p.a.sge(603, 397)};
  const Sge into[] = {p.b.sge(kRemoteAt, 300), p.b.sge(kRemoteAt + 300, 1),
                      p.b.sge(kRemoteAt + 301, 698), p.b.sge(kRemoteAt + 999, 50)};
  ASSERT_TRUE(p.b.engine.post_recv(p.qb, {.wr_id = 7, .sges = into}));
  ASSERT_TRUE(
      p.a.engine.post_send(p.qa, {.wr_id = 1, .flags = send_flag::kSignaled, .sges = from}));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");
  const auto got = p.b.poll();
  ASSERT_EQ(text(got), "7");
  EXPECT_EQ(got[0].byte_len, 1000u);
  EXPECT_TRUE(p.same(0, kRemoteAt, 1000));
}

}  // namespace
}  // namespace verbena::hca
