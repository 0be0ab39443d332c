#include "faults/delay_line.h"

#include <gtest/gtest.h>

namespace verbena::faults {
namespace {

constexpr Time kStart{};
constexpr Duration kTick = std::chrono::milliseconds(1);

TEST(DelayLine, NoPacketIsDueBeforeItsPredecessor) {
  DelayLine<int> line;
  EXPECT_EQ(line.next_due(), kNever);
  EXPECT_TRUE(line.push(1, kStart + 3 * kTick));
  EXPECT_TRUE(line.push(2, kStart + kTick));  // packet 2 has a shorter delay
  EXPECT_EQ(line.next_due(), kStart + 3 * kTick);
  EXPECT_EQ(line.first_due_packet(kStart + 2 * kTick), nullptr);
  for (const int packet : {1, 2}) {
    ASSERT_NE(line.first_due_packet(kStart + 3 * kTick), nullptr);
    EXPECT_EQ(*line.first_due_packet(kStart + 3 * kTick), packet);
    EXPECT_EQ(line.pop(), packet);
  }
  EXPECT_TRUE(line.empty());
}

TEST(DelayLine, RefusesPacketsWhenItIsFull) {
  DelayLine<int> line;
  for (std::size_t i = 0; i < DelayLine<int>::kPacketsMax; ++i) ASSERT_TRUE(line.push(1, kStart));
  EXPECT_FALSE(line.push(2, kStart));
  EXPECT_EQ(line.size(), DelayLine<int>::kPacketsMax);
  (void)line.pop();
  EXPECT_TRUE(line.push(2, kStart));
}

}  // namespace
}  // namespace verbena::faults
