#include "ethernet/link_faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace verbena::ethernet {
namespace {

constexpr RailId kRail{.host = 1, .device = 0};

std::vector<bool> losses(const Loss& loss, std::uint64_t packets) {
  std::vector<bool> all;
  for (std::uint64_t i = 0; i < packets; ++i) all.push_back(is_lost(loss, i));
  return all;
}

TEST(LinkFaults, TheSeedDecidesWhichPacketsAreLost) {
  const Loss ten_percent{.per_million = 100'000, .seed = 7};
  const auto lost = losses(ten_percent, 10'000);
  const auto count = std::count(lost.begin(), lost.end(), true);
  EXPECT_GT(count, 900);
  EXPECT_LT(count, 1100);
  EXPECT_EQ(losses(ten_percent, 10'000), lost);
  EXPECT_NE(losses({.per_million = 100'000, .seed = 8}, 10'000), lost);
}

TEST(LinkFaults, AllOrNothingCanBeLost) {
  EXPECT_EQ(losses({.per_million = Loss::kAll}, 100), std::vector<bool>(100, true));
  EXPECT_EQ(losses({.per_million = 0}, 100), std::vector<bool>(100, false));
}

TEST(LinkFaults, ANewLossBeginsWithTheFirstPacketOfItsSeed) {
  const Loss half{.per_million = Loss::kAll / 2, .seed = 3};
  LinkFaults faults;
  for (int round = 0; round < 2; ++round) {
    faults.set_loss(kRail, half);
    std::vector<bool> lost;
    for (int i = 0; i < 100; ++i) lost.push_back(faults.loses_next(kRail));
    EXPECT_EQ(lost, losses(half, 100));
  }
  EXPECT_FALSE(faults.loses_next({.host = 0, .device = 0}));
  faults.set_loss(kRail, {});
  EXPECT_EQ(faults.loss(kRail), Loss{});
  EXPECT_FALSE(faults.loses_next(kRail));
}

TEST(LinkFaults, APulledLinkStaysPulledWhileItsHostIsOff) {
  LinkFaults faults;
  faults.set_link(kRail, false);
  faults.set_host(kRail.host, false);
  EXPECT_FALSE(faults.is_up({.host = kRail.host, .device = 1}));
  faults.set_host(kRail.host, true);
  EXPECT_TRUE(faults.is_up({.host = kRail.host, .device = 1}));
  EXPECT_FALSE(faults.is_up(kRail));
  faults.set_link(kRail, true);
  EXPECT_TRUE(faults.is_up(kRail));
}

}  // namespace
}  // namespace verbena::ethernet
