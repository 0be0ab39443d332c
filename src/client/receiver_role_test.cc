#include "client/receiver_role.h"

#include <gtest/gtest.h>

namespace verbena::client {
namespace {

using For = ReceiverRole::For;
using Holder = ReceiverRole::Holder;

TEST(ReceiverRole, TheProgressThreadHasTheRoleFirst) {
  ReceiverRole role;
  EXPECT_FALSE(role.is_lent());
  EXPECT_FALSE(role.belongs_to(0));
  EXPECT_EQ(role.check(), Holder::kProgressThread);
}

TEST(ReceiverRole, OnlyTheFirstWaitTakesTheRoleFromTheProgressThread) {
  ReceiverRole role;
  const auto first = role.take(For::kCompletions);
  EXPECT_TRUE(first.from_progress_thread);
  EXPECT_FALSE(role.end_wait(first.wait)) << "the progress thread has not seen the wait";
  const auto second = role.take(For::kCompletions);
  EXPECT_NE(second.wait, 0u);
  EXPECT_FALSE(second.from_progress_thread);
}

TEST(ReceiverRole, ASecondThreadThatWaitsForCompletionsDoesNotGetTheRole) {
  ReceiverRole role;
  const auto first = role.take(For::kCompletions);
  EXPECT_EQ(role.take(For::kCompletions).wait, 0u);
  EXPECT_EQ(role.take(For::kConnections).wait, 0u);
  EXPECT_TRUE(role.belongs_to(first.wait));
}

TEST(ReceiverRole, AWaitForCompletionsTakesTheRoleFromAWaitForConnections) {
  ReceiverRole role;
  const auto connections = role.take(For::kConnections);
  EXPECT_EQ(role.take(For::kConnections).wait, 0u);
  const auto completions = role.take(For::kCompletions);
  EXPECT_TRUE(completions.from_waiter);
  EXPECT_FALSE(completions.from_progress_thread);
  EXPECT_TRUE(role.belongs_to(completions.wait));
  EXPECT_FALSE(role.belongs_to(connections.wait));
  EXPECT_FALSE(role.give_back(connections.wait)) << "the role belongs to the other wait";
  EXPECT_FALSE(role.end_wait(connections.wait));
  EXPECT_TRUE(role.belongs_to(completions.wait));
}

TEST(ReceiverRole, EndWaitReturnsTrueOnceIfTheProgressThreadMustCheck) {
  ReceiverRole role;
  const auto first = role.take(For::kCompletions);
  EXPECT_EQ(role.check(), Holder::kWaiter);
  EXPECT_TRUE(role.end_wait(first.wait));
  EXPECT_FALSE(role.end_wait(role.take(For::kCompletions).wait));
}

TEST(ReceiverRole, AWaiterThatIsAwayForTwoChecksLosesTheRole) {
  ReceiverRole role;
  ASSERT_FALSE(role.end_wait(role.take(For::kCompletions).wait));
  EXPECT_EQ(role.check(), Holder::kAwayWaiter);
  ASSERT_FALSE(role.end_wait(role.take(For::kCompletions).wait));
  EXPECT_EQ(role.check(), Holder::kAwayWaiter) << "the waiter was back meanwhile";
  EXPECT_EQ(role.check(), Holder::kProgressThread);
  EXPECT_TRUE(role.take(For::kCompletions).from_progress_thread);
}

TEST(ReceiverRole, AnEvictedWaiterNoLongerHasTheRole) {
  ReceiverRole role;
  const auto wait = role.take(For::kCompletions);
  role.evict();
  EXPECT_FALSE(role.belongs_to(wait.wait));
  EXPECT_EQ(role.check(), Holder::kProgressThread);
  EXPECT_FALSE(role.give_back(wait.wait));
}

}  // namespace
}  // namespace verbena::client
