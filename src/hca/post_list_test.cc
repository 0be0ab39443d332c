// Tests that a list of send requests is posted as a whole, or not at all (ibv_wr_complete()).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr std::size_t kListSource = 0, kListTarget = 2'000'000;

// Makes lists of requests of host a, and posts them.
struct ListPair : Pair {
  explicit ListPair(const Options& options = {}) : Pair(options) { sges.reserve(64); }

  void add(WrOpcode opcode, std::uint64_t id, std::size_t offset, std::size_t remote,
           std::size_t bytes, std::uint32_t flags = send_flag::kSignaled) {
    sges.push_back(a.sge(offset, bytes));
    list.push_back({.wr_id = id,
                    .opcode = opcode,
                    .flags = flags,
                    .sges = {&sges.back(), 1},
                    .remote_address = b.address(remote),
                    .r_key = b.mr.rkey});
  }
  // Posts the list, and begins an empty one.
  Result<void> post_list() {
    const auto result = a.engine.post_send_list(
        qa, list.size(), [this](std::size_t i) -> Result<SendRequest> { return list[i]; });
    list.clear();
    sges.clear();
    return result;
  }
  std::uint32_t room() { return a.engine.free_send_slots(qa).value(); }

  std::vector<Sge> sges{};
  std::vector<SendRequest> list{};
};

TEST(PostList, RequestsOfAListAreExecutedInOrder) {
  ListPair pair;
  pair.a.fill(kListSource, 1000, 3);
  for (std::uint64_t id = 1; id <= 5; ++id) {
    pair.add(WrOpcode::kWrite, id, kListSource, kListTarget, id * 200);
  }
  ASSERT_TRUE(pair.post_list());
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2 3 4 5");
  EXPECT_TRUE(pair.same(kListSource, kListTarget, 1000));
}

TEST(PostList, RefusedRequestKeepsTheOthersFromBeingPosted) {
  ListPair pair;
  pair.a.fill(kListSource, 64, 3);
  const std::uint32_t room = pair.room();
  pair.add(WrOpcode::kWrite, 1, kListSource, kListTarget, 64);
  pair.add(WrOpcode::kRead, 2, kListSource, kListTarget, 4, send_flag::kInline);
  pair.add(WrOpcode::kWrite, 3, kListSource, kListTarget, 64);
  EXPECT_EQ(pair.post_list().error().code, Errc::kInvalidArgument);
  EXPECT_EQ(pair.room(), room);
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "");
  EXPECT_EQ(pair.b.memory[kListTarget], std::byte{0});
  // Later requests take the slots of the refused ones.
  pair.add(WrOpcode::kWrite, 4, kListSource, kListTarget, 64);
  ASSERT_TRUE(pair.post_list());
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "4");
}

TEST(PostList, ErrorOfTheCallerKeepsTheOthersFromBeingPosted) {
  ListPair pair;
  pair.add(WrOpcode::kWrite, 1, kListSource, kListTarget, 64);
  const auto result =
      pair.a.engine.post_send_list(pair.qa, 2, [&](std::size_t i) -> Result<SendRequest> {
        if (i == 1) return fail(Errc::kNotSupported, "unknown");
        return pair.list[i];
      });
  EXPECT_EQ(result.error().code, Errc::kNotSupported);
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "");
}

TEST(PostList, ListThatDoesNotFitIsRefusedAsAWhole) {
  ListPair pair({.caps = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1}});
  ASSERT_EQ(pair.room(), 4U);
  for (std::uint64_t id = 1; id <= 5; ++id) {
    pair.add(WrOpcode::kWrite, id, kListSource, kListTarget, 8);
  }
  EXPECT_EQ(pair.post_list().error().code, Errc::kNoResources);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    pair.add(WrOpcode::kWrite, id, kListSource, kListTarget, 8);
  }
  ASSERT_TRUE(pair.post_list());
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2 3 4");
}

TEST(PostList, FencedRequestOfAListSendsWhatTheReadBeforeItBrought) {
  ListPair pair;
  constexpr std::size_t kBrought = 1'000'000;
  pair.b.fill(kBrought, 64, 7);
  pair.add(WrOpcode::kRead, 1, kListSource, kBrought, 64);
  pair.add(WrOpcode::kWrite, 2, kListSource, kListTarget, 64,
           send_flag::kFence | send_flag::kSignaled);
  ASSERT_TRUE(pair.post_list());
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "1 2");
  EXPECT_TRUE(pair.same(kListSource, kListTarget, 64));
  EXPECT_EQ(pair.b.memory[kListTarget], pair.b.memory[kBrought]);
}

// A READ that was refused brings nothing, so a later fenced request does not wait for it.
TEST(PostList, FencedRequestAfterARefusedReadIsCopiedAtThePost) {
  ListPair pair;
  pair.add(WrOpcode::kRead, 1, kListSource, kListTarget, 8);
  pair.add(WrOpcode::kRead, 2, kListSource, kListTarget, 8, send_flag::kInline);
  EXPECT_FALSE(pair.post_list());
  pair.rdma(WrOpcode::kWrite, 3, kListSource, kListTarget, 8).value();
  std::ranges::fill(pair.a.memory.subspan(kListSource, 8), std::byte{3});
  pair.rdma(WrOpcode::kWrite, 4, kListSource, kListTarget, 8,
            send_flag::kFence | send_flag::kSignaled)
      .value();
  std::ranges::fill(pair.a.memory.subspan(kListSource, 8), std::byte{4});
  pair.wire.run();
  EXPECT_EQ(text(pair.a.poll()), "3 4");
  EXPECT_EQ(pair.b.memory[kListTarget], std::byte{3});
}

TEST(PostList, ListIsRefusedUntilTheQueuePairIsReadyToSend) {
  ListPair pair;
  QpAttributes attributes;
  attributes.state = QpState::kReset;
  pair.a.engine.modify_qp(pair.qa, attributes, attribute::kState, pair.wire.now).value();
  pair.add(WrOpcode::kWrite, 1, kListSource, kListTarget, 8);
  EXPECT_EQ(pair.post_list().error().code, Errc::kBadState);
}

}  // namespace
}  // namespace verbena::hca
