#include "agent/socketless_ranges.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::agent {
namespace {

TEST(SocketlessRanges, LeasesEachRangeOnceAndNoneThatIsTaken) {
  Random random(1);
  SocketlessRanges ranges;
  const auto is_odd = [](std::uint16_t range) { return range % 2 != 0; };
  std::vector<std::uint16_t> avoid;
  for (std::uint16_t range = 2; range < 2000; range += 2) avoid.push_back(range);
  for (std::size_t i = 0; i < SocketlessRanges::kLeasesMax; ++i) {
    const auto range = ranges.lease(random, avoid, is_odd);
    ASSERT_TRUE(range.has_value());
    EXPECT_EQ(*range % 2, 0);
    EXPECT_GE(*range, 2000);
    EXPECT_LT(*range, 0xfff);
    EXPECT_EQ(ranges.leased_ranges().size(), i + 1);
  }
  EXPECT_EQ(ranges.lease(random, avoid, is_odd).error().code, Errc::kNoResources);
  const std::uint16_t leased_range = *ranges.leased_ranges().begin();
  EXPECT_TRUE(ranges.release(leased_range));
  EXPECT_FALSE(ranges.release(leased_range));
  EXPECT_TRUE(ranges.lease(random, avoid, is_odd).has_value());
}

// Programs of a dead agent name the ranges to avoid, which may be any numbers.
TEST(SocketlessRanges, LeasesTheLastFreeRangeAndThenNoneIfTheOthersAreAvoided) {
  Random random(1);
  SocketlessRanges ranges;
  std::vector<std::uint16_t> avoid{0, SocketlessRanges::kRangesEnd, 0xffff};
  for (std::uint16_t range = 1; range < SocketlessRanges::kRangesEnd - 1; ++range) {
    avoid.push_back(range);
  }
  const auto is_taken = [](std::uint16_t) { return false; };
  EXPECT_EQ(ranges.lease(random, avoid, is_taken).value(), SocketlessRanges::kRangesEnd - 1);
  EXPECT_EQ(ranges.lease(random, avoid, is_taken).error().code, Errc::kNoResources);
}

}  // namespace
}  // namespace verbena::agent
