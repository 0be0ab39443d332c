#include "os/adaptive_spin.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

constexpr Duration kSpinLimit = std::chrono::microseconds(200);
constexpr Duration kShortWait = kSpinLimit - Duration(1);

// Records waits of the length `time` until the thread should spin.  Returns the number of waits.
int waits_until_it_spins(AdaptiveSpin& spin, Duration time) {
  int waits = 0;
  while (!spin.should_spin() && waits < 20'000) {
    spin.record_sleep(time);
    ++waits;
  }
  return waits;
}

TEST(AdaptiveSpin, SpinsAfterSomeShortWaits) {
  AdaptiveSpin spin(kSpinLimit);
  EXPECT_FALSE(spin.should_spin());
  EXPECT_EQ(waits_until_it_spins(spin, kShortWait), 4);
}

TEST(AdaptiveSpin, StopsSpinningAfterOneLongWait) {
  AdaptiveSpin spin(kSpinLimit);
  (void)waits_until_it_spins(spin, kShortWait);
  spin.record_sleep(kSpinLimit);
  EXPECT_EQ(waits_until_it_spins(spin, kShortWait), 4);
}

TEST(AdaptiveSpin, NeverSpinsForLongWaits) {
  AdaptiveSpin spin(kSpinLimit);
  EXPECT_EQ(waits_until_it_spins(spin, kSpinLimit), 20'000);
}

TEST(AdaptiveSpin, FailedSpinStopsSpinningForSomeWaitsOfAnyLength) {
  AdaptiveSpin spin(kSpinLimit);
  (void)waits_until_it_spins(spin, kShortWait);
  spin.record_failed_spin();
  for (int i = 0; i < 8; ++i) spin.polled();
  for (int i = 0; i < 8; ++i) spin.record_sleep(kSpinLimit);
  EXPECT_EQ(waits_until_it_spins(spin, kShortWait), 4);
}

TEST(AdaptiveSpin, SlowYieldStopsSpinningForManyWaits) {
  AdaptiveSpin spin(kSpinLimit);
  (void)waits_until_it_spins(spin, kShortWait);
  EXPECT_TRUE(spin.yielded(std::chrono::microseconds(5)));
  EXPECT_TRUE(spin.should_spin());
  EXPECT_FALSE(spin.yielded(std::chrono::milliseconds(3)));
  spin.record_failed_spin();  // must not shorten the pause
  EXPECT_EQ(waits_until_it_spins(spin, kShortWait), 512 + 4);
}

TEST(AdaptiveSpin, PauseDoublesWithEachFailedSpin) {
  AdaptiveSpin spin(kSpinLimit);
  const auto waits_after_failed_spin = [&spin] {
    (void)waits_until_it_spins(spin, kShortWait);
    spin.record_failed_spin();
    return waits_until_it_spins(spin, kShortWait) - 4;
  };
  EXPECT_EQ(waits_after_failed_spin(), 16);
  EXPECT_EQ(waits_after_failed_spin(), 32);
  EXPECT_EQ(waits_after_failed_spin(), 64);
  spin.record_successful_spin();
  EXPECT_EQ(waits_after_failed_spin(), 64);
  for (int i = 0; i < 10; ++i) spin.record_successful_spin();
  EXPECT_EQ(waits_after_failed_spin(), 16);
  for (int i = 0; i < 20; ++i) (void)waits_after_failed_spin();
  EXPECT_EQ(waits_after_failed_spin(), 4096);
}

}  // namespace
}  // namespace verbena::os
