// Tests that a fenced request sends what the READs and atomics before it have brought.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hca/test_lanes.h"

namespace verbena::hca {
namespace {

using namespace testing;

// Host a fills kLocal from kSource of host b, and then sends kLocal to kTarget of host b.
constexpr std::size_t kLocal = 0, kSource = 1'000'000, kTarget = DirectPair::kRemoteOffset;
constexpr std::uint32_t kFenced = send_flag::kFence | send_flag::kSignaled;
constexpr std::array kLengths{1u, 8u, 127u, 128u, 129u, 1024u, 40'000u};

struct FencedCase {
  const char* name;
  WrOpcode first, second;
};
constexpr std::array kFencedCases{
    FencedCase{"WRITE after READ", WrOpcode::kRead, WrOpcode::kWrite},
    FencedCase{"WRITE with immediate data after READ", WrOpcode::kRead, WrOpcode::kWriteImm},
    FencedCase{"SEND after READ", WrOpcode::kRead, WrOpcode::kSend},
    FencedCase{"SEND with immediate data after READ", WrOpcode::kRead, WrOpcode::kSendImm},
    FencedCase{"ATOMIC WRITE after READ", WrOpcode::kRead, WrOpcode::kAtomicWrite},
    FencedCase{"WRITE after FETCH_ADD", WrOpcode::kFetchAdd, WrOpcode::kWrite},
    FencedCase{"SEND after CMP_SWAP", WrOpcode::kCompareSwap, WrOpcode::kSend}};

// Posts both requests of the case, and compares what arrives with what the first request brought.
// `between` runs between the two posts.
template <class SomePair>
void expect_fresh_data(SomePair& pair, const FencedCase& one, std::size_t bytes, auto&& between) {
  SCOPED_TRACE(::testing::Message() << one.name << ", " << bytes << " bytes");
  const std::size_t brought = one.first == WrOpcode::kRead ? bytes : kAtomicBytes;
  std::ranges::fill(pair.a.memory.subspan(kLocal, bytes), std::byte{0xee});
  std::ranges::fill(pair.b.memory.subspan(kTarget, bytes), std::byte{0});
  pair.b.fill(kSource, bytes, 7);
  const auto source = pair.b.memory.subspan(kSource, std::min(bytes, brought));
  const std::vector<std::byte> expected(source.begin(), source.end());

  const bool needs_receive = one.second != WrOpcode::kWrite && one.second != WrOpcode::kAtomicWrite;
  if (needs_receive) pair.receive(9, kTarget, bytes).value();
  pair.rdma(one.first, 1, kLocal, kSource, brought).value();
  between();
  pair.rdma(one.second, 2, kLocal, kTarget, bytes, kFenced).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2");
  EXPECT_EQ(text(pair.b.poll()), needs_receive ? "9" : "");
  EXPECT_TRUE(std::ranges::equal(pair.b.memory.subspan(kTarget, expected.size()), expected));
}

template <class SomePair>
void expect_fresh_data_in_all_cases(SomePair& pair, auto&& between) {
  for (const FencedCase& one : kFencedCases) {
    for (const std::size_t bytes : kLengths) {
      if (one.second == WrOpcode::kAtomicWrite && bytes != kAtomicBytes) continue;
      expect_fresh_data(pair, one, bytes, between);
    }
  }
}

TEST(Fence, FencedRequestsSendWhatEarlierReadsBrought) {
  Pair pair;
  expect_fresh_data_in_all_cases(pair, [] {});
}

TEST(Fence, FencedRequestsSendWhatEarlierReadsBroughtByALane) {
  LanePair pair;
  pair.attach();
  expect_fresh_data_in_all_cases(pair, [] {});
}

TEST(Fence, FencedRequestsSendWhatEarlierReadsBroughtByDirectAccess) {
  DirectPair pair;
  expect_fresh_data_in_all_cases(pair, [] {});
  EXPECT_GT(pair.count_at_a(Counter::kDirectReads), 0U);
}

TEST(Fence, FencedRequestsSendWhatReadsBroughtThatHadBegun) {
  Pair pair;
  expect_fresh_data_in_all_cases(pair, [&] { pair.wire.drain(pair.a); });
}

// Brings the send queue of host a to SQD, where it begins no request, or back to RTS.
void set_state_of_a(Pair& pair, QpState state) {
  QpAttributes attributes;
  attributes.state = state;
  pair.a.engine.modify_qp(pair.qa, attributes, attribute::kState, pair.wire.now).value();
}

TEST(Fence, FencedRequestsPostedInSqdSendWhatReadsBrought) {
  for (const bool read_has_begun : {false, true}) {
    SCOPED_TRACE(read_has_begun);
    Pair pair;
    pair.b.fill(kSource, 64, 7);
    pair.rdma(WrOpcode::kRead, 1, kLocal, kSource, 64).value();
    if (read_has_begun) pair.wire.drain(pair.a);
    set_state_of_a(pair, QpState::kSqd);
    pair.rdma(WrOpcode::kWrite, 2, kLocal, kTarget, 64, kFenced).value();
    pair.wire.run();
    EXPECT_EQ(text(pair.a.poll()), read_has_begun ? "1" : "");
    set_state_of_a(pair, QpState::kRts);
    pair.wire.run();
    EXPECT_EQ(text(pair.a.poll()), read_has_begun ? "2" : "1 2");
    EXPECT_TRUE(
        std::ranges::equal(pair.b.memory.subspan(kTarget, 64), pair.b.memory.subspan(kSource, 64)));
  }
}

// A program may not know whether READs are pending, and so may fence each request.
TEST(Fence, SmallFencedRequestIsCopiedAtThePostIfNoReadIsPending) {
  Pair pair;
  pair.rdma(WrOpcode::kRead, 1, kLocal, kSource, 64).value();
  pair.wire.run();
  std::ranges::fill(pair.a.memory.subspan(kLocal, 64), std::byte{3});
  pair.rdma(WrOpcode::kWrite, 2, kLocal, kTarget, 64, kFenced).value();
  std::ranges::fill(pair.a.memory.subspan(kLocal, 64), std::byte{4});
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2");
  EXPECT_EQ(pair.b.memory[kTarget], std::byte{3});
  EXPECT_EQ(pair.b.memory[kTarget + 63], std::byte{3});
}

TEST(Fence, InlineDataIsTakenAtThePostInSpiteOfAFence) {
  Pair pair({.caps = {.max_send_wr = 4,
                      .max_recv_wr = 4,
                      .max_send_sge = 1,
                      .max_recv_sge = 1,
                      .max_inline_bytes = 64}});
  std::ranges::fill(pair.a.memory.subspan(kLocal, 64), std::byte{3});
  pair.rdma(WrOpcode::kRead, 1, kLocal, kSource, 64).value();
  pair.rdma(WrOpcode::kWrite, 2, kLocal, kTarget, 64, kFenced | send_flag::kInline).value();
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2");
  EXPECT_EQ(pair.b.memory[kTarget], std::byte{3});
}

}  // namespace
}  // namespace verbena::hca
