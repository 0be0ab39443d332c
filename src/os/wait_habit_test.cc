#include "os/wait_habit.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

constexpr Duration kMoment = std::chrono::microseconds(200);
constexpr Duration kShort = kMoment - Duration(1);

// Counts the waits of length `time` after which it spins.
int waits_until_it_looks(WaitHabit& habit, Duration time) {
  int waits = 0;
  while (!habit.looks_on() && waits < 20'000) {
    habit.slept(time);
    ++waits;
  }
  return waits;
}

TEST(WaitHabit, SpinsAfterSomeShortWaits) {
  WaitHabit habit(kMoment);
  EXPECT_FALSE(habit.looks_on());
  EXPECT_EQ(waits_until_it_looks(habit, kShort), 4);
}

TEST(WaitHabit, StopsSpinningAfterOneLongWait) {
  WaitHabit habit(kMoment);
  (void)waits_until_it_looks(habit, kShort);
  habit.slept(kMoment);
  EXPECT_EQ(waits_until_it_looks(habit, kShort), 4);
}

TEST(WaitHabit, NeverSpinsForLongWaits) {
  WaitHabit habit(kMoment);
  EXPECT_EQ(waits_until_it_looks(habit, kMoment), 20'000);
}

TEST(WaitHabit, FailedSpinStopsSpinningForSomeWaitsOfAnyLength) {
  WaitHabit habit(kMoment);
  (void)waits_until_it_looks(habit, kShort);
  habit.looked_in_vain();
  EXPECT_FALSE(habit.others_compute());
  for (int i = 0; i < 8; ++i) habit.did_not_wait();
  for (int i = 0; i < 8; ++i) habit.slept(kMoment);
  EXPECT_EQ(waits_until_it_looks(habit, kShort), 4);
}

TEST(WaitHabit, ComputingThreadsStopSpinningForManyWaits) {
  WaitHabit habit(kMoment);
  (void)waits_until_it_looks(habit, kShort);
  EXPECT_TRUE(habit.others_ran(std::chrono::microseconds(5)));
  EXPECT_TRUE(habit.looks_on());
  EXPECT_FALSE(habit.others_ran(std::chrono::milliseconds(3)));
  EXPECT_TRUE(habit.others_compute());
  habit.looked_in_vain();  // must not shorten the pause
  EXPECT_EQ(waits_until_it_looks(habit, kShort), 512 + 4);
  EXPECT_FALSE(habit.others_compute());
}

TEST(WaitHabit, PauseDoublesWithEachFailedSpin) {
  WaitHabit habit(kMoment);
  const auto waits_after_vain = [&habit] {
    (void)waits_until_it_looks(habit, kShort);
    habit.looked_in_vain();
    return waits_until_it_looks(habit, kShort) - 4;
  };
  EXPECT_EQ(waits_after_vain(), 16);
  EXPECT_EQ(waits_after_vain(), 32);
  EXPECT_EQ(waits_after_vain(), 64);
  habit.found_something();
  EXPECT_EQ(waits_after_vain(), 64);
  for (int i = 0; i < 10; ++i) habit.found_something();
  EXPECT_EQ(waits_after_vain(), 16);
  for (int i = 0; i < 20; ++i) (void)waits_after_vain();
  EXPECT_EQ(waits_after_vain(), 4096);
  habit.looked_in_vain();
  EXPECT_FALSE(habit.others_compute());
}

}  // namespace
}  // namespace verbena::os
