#include "os/adaptive_spin.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

constexpr Duration kMoment = std::chrono::microseconds(200);
constexpr Duration kShort = kMoment - Duration(1);

// Counts the waits of length `time` after which a thread spins.
int waits_until_it_spins(AdaptiveSpin& spin, Duration time) {
  int waits = 0;
  while (!spin.should_spin() && waits < 20'000) {
    spin.slept(time);
    ++waits;
  }
  return waits;
}

TEST(AdaptiveSpin, SpinsAfterSomeShortWaits) {
  AdaptiveSpin spin(kMoment);
  EXPECT_FALSE(spin.should_spin());
  EXPECT_EQ(waits_until_it_spins(spin, kShort), 4);
}

TEST(AdaptiveSpin, StopsSpinningAfterOneLongWait) {
  AdaptiveSpin spin(kMoment);
  (void)waits_until_it_spins(spin, kShort);
  spin.slept(kMoment);
  EXPECT_EQ(waits_until_it_spins(spin, kShort), 4);
}

TEST(AdaptiveSpin, NeverSpinsForLongWaits) {
  AdaptiveSpin spin(kMoment);
  EXPECT_EQ(waits_until_it_spins(spin, kMoment), 20'000);
}

TEST(AdaptiveSpin, FailedSpinStopsSpinningForSomeWaitsOfAnyLength) {
  AdaptiveSpin spin(kMoment);
  (void)waits_until_it_spins(spin, kShort);
  spin.spin_failed();
  for (int i = 0; i < 8; ++i) spin.polled();
  for (int i = 0; i < 8; ++i) spin.slept(kMoment);
  EXPECT_EQ(waits_until_it_spins(spin, kShort), 4);
}

TEST(AdaptiveSpin, ComputingThreadsStopSpinningForManyWaits) {
  AdaptiveSpin spin(kMoment);
  (void)waits_until_it_spins(spin, kShort);
  EXPECT_TRUE(spin.yielded(std::chrono::microseconds(5)));
  EXPECT_TRUE(spin.should_spin());
  EXPECT_FALSE(spin.yielded(std::chrono::milliseconds(3)));
  spin.spin_failed();  // must not shorten the pause
  EXPECT_EQ(waits_until_it_spins(spin, kShort), 512 + 4);
}

TEST(AdaptiveSpin, PauseDoublesWithEachFailedSpin) {
  AdaptiveSpin spin(kMoment);
  const auto waits_after_vain = [&spin] {
    (void)waits_until_it_spins(spin, kShort);
    spin.spin_failed();
    return waits_until_it_spins(spin, kShort) - 4;
  };
  EXPECT_EQ(waits_after_vain(), 16);
  EXPECT_EQ(waits_after_vain(), 32);
  EXPECT_EQ(waits_after_vain(), 64);
  spin.spin_succeeded();
  EXPECT_EQ(waits_after_vain(), 64);
  for (int i = 0; i < 10; ++i) spin.spin_succeeded();
  EXPECT_EQ(waits_after_vain(), 16);
  for (int i = 0; i < 20; ++i) (void)waits_after_vain();
  EXPECT_EQ(waits_after_vain(), 4096);
}

}  // namespace
}  // namespace verbena::os
