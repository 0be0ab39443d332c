#include "faults/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace verbena::faults {
namespace {

std::vector<bool> losses(const Loss& loss, std::uint64_t packet_count) {
  std::vector<bool> all;
  for (std::uint64_t i = 0; i < packet_count; ++i) all.push_back(is_lost(loss, i));
  return all;
}

TEST(Loss, TheSeedDeterminesTheLostPackets) {
  const Loss ten_percent{.per_million = 100'000, .seed = 7};
  const auto lost = losses(ten_percent, 10'000);
  const auto count = std::count(lost.begin(), lost.end(), true);
  EXPECT_GT(count, 900);
  EXPECT_LT(count, 1100);
  EXPECT_EQ(losses(ten_percent, 10'000), lost);
  EXPECT_NE(losses({.per_million = 100'000, .seed = 8}, 10'000), lost);
}

TEST(Loss, LosesNoneOrAllPacketsAtTheLimits) {
  EXPECT_EQ(losses({.per_million = Loss::kAll}, 100), std::vector<bool>(100, true));
  EXPECT_EQ(losses({.per_million = 0}, 100), std::vector<bool>(100, false));
}

TEST(Loss, ALossyLinkNumbersItsPacketsFromZero) {
  const Loss fifty_percent{.per_million = Loss::kAll / 2, .seed = 3};
  LossyLink link(fifty_percent);
  std::vector<bool> lost;
  for (int i = 0; i < 100; ++i) lost.push_back(link.should_drop_next());
  EXPECT_EQ(lost, losses(fifty_percent, 100));
}

}  // namespace
}  // namespace verbena::faults
