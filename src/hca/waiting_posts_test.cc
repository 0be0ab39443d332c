#include <gtest/gtest.h>

#include "hca/test_pair.h"

// Tests which posts may wait for more posts (Engine::posts_can_wait()).
namespace verbena::hca {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of test_pair.h

TEST(WaitingPosts, APostWithoutUnansweredPacketsDoesNotWait) {
  HostUnderTest s;
  EXPECT_FALSE(s.host.engine.posts_can_wait()) << "nothing was posted";
  s.post(WrOpcode::kSend, 1, 64);
  EXPECT_FALSE(s.host.engine.posts_can_wait());
}

TEST(WaitingPosts, ASmallPostAfterUnansweredPacketsWaits) {
  HostUnderTest s;
  s.post(WrOpcode::kSend, 1, 64);
  ASSERT_EQ(s.out().size(), 1u);
  s.post(WrOpcode::kSend, 2, 64);
  EXPECT_TRUE(s.host.engine.posts_can_wait());
  s.acknowledge(1000, wire::ack(1));
  EXPECT_FALSE(s.host.engine.posts_can_wait()) << "all packets are answered";
}

TEST(WaitingPosts, AFullBatchDoesNotWait) {
  HostUnderTest s;
  s.post(WrOpcode::kSend, 1, 64);
  ASSERT_EQ(s.out().size(), 1u);
  std::uint64_t waiting = 0;
  for (s.post(WrOpcode::kSend, 2, 64); s.host.engine.posts_can_wait() && waiting < 64;) {
    s.post(WrOpcode::kSend, 3 + waiting++, 64);
  }
  EXPECT_EQ(waiting + 1, 32u);
  EXPECT_EQ(s.out().size(), 15u) << "the rest of the first window";
  EXPECT_FALSE(s.host.engine.posts_can_wait()) << "the driver has seen these posts";
}

TEST(WaitingPosts, ALongPostDoesNotWait) {
  HostUnderTest s;
  s.post(WrOpcode::kSend, 1, 64);
  ASSERT_EQ(s.out().size(), 1u);
  s.post(WrOpcode::kSend, 2, 1025);
  EXPECT_FALSE(s.host.engine.posts_can_wait());
}

TEST(WaitingPosts, APostToAnIdleQpEndsTheWaitOfAllPosts) {
  HostUnderTest s;
  s.post(WrOpcode::kSend, 1, 64);
  ASSERT_EQ(s.out().size(), 1u);
  s.post(WrOpcode::kSend, 2, 64);
  ASSERT_TRUE(s.host.engine.posts_can_wait());
  const QpHandle idle = create_connected_qp(s.host, s.o, Qpn{0x12});
  bring_to_state(s.host, idle, attributes_for(s.host, s.host, s.o, Qpn{0x22}, s.o.psn_a, s.o.psn_b),
                 QpState::kRts);
  const Sge sge = s.host.sge(0, 64);
  s.host.engine.post_send(idle, {.wr_id = 3, .sges = {&sge, 1}}).value();
  EXPECT_FALSE(s.host.engine.posts_can_wait());
}

}  // namespace
}  // namespace verbena::hca
