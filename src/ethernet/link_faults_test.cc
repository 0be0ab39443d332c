#include "ethernet/link_faults.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace verbena::ethernet {
namespace {

constexpr RailId kRail{.host = 1, .device = 0};

TEST(LinkFaults, SettingALossResetsThePacketCount) {
  const Loss fifty_percent{.per_million = Loss::kAll / 2, .seed = 3};
  LinkFaults faults;
  for (int round = 0; round < 2; ++round) {
    faults.set_loss(kRail, fifty_percent);
    std::vector<bool> lost;
    for (int i = 0; i < 100; ++i) lost.push_back(faults.should_drop_next(kRail));
    std::vector<bool> expected;
    for (std::uint64_t i = 0; i < 100; ++i) expected.push_back(faults::is_lost(fifty_percent, i));
    EXPECT_EQ(lost, expected);
  }
  EXPECT_FALSE(faults.should_drop_next({.host = 0, .device = 0}));
  faults.set_loss(kRail, {});
  EXPECT_EQ(faults.loss(kRail), Loss{});
  EXPECT_FALSE(faults.should_drop_next(kRail));
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

TEST(LinkFaults, DelayMtuAndPauseCanBeSetAndEnded) {
  LinkFaults faults;
  EXPECT_EQ(faults.delay(kRail), Duration{});
  faults.set_delay(kRail, std::chrono::milliseconds(5));
  EXPECT_EQ(faults.delay(kRail), std::chrono::milliseconds(5));
  faults.set_delay(kRail, {});
  EXPECT_EQ(faults.delay(kRail), Duration{});
  faults.set_mtu(kRail, 1500);
  EXPECT_EQ(faults.mtu_bytes(kRail), 1500u);
  faults.set_mtu(kRail, std::nullopt);
  EXPECT_EQ(faults.mtu_bytes(kRail), std::nullopt);
  faults.set_paused(kRail.host, true);
  EXPECT_TRUE(faults.is_paused(kRail.host));
  EXPECT_TRUE(faults.is_up(kRail)) << "the ports of a paused host stay up";
  faults.set_paused(kRail.host, false);
  EXPECT_FALSE(faults.is_paused(kRail.host));
}

}  // namespace
}  // namespace verbena::ethernet
