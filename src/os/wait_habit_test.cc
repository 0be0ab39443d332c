#include "os/wait_habit.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

constexpr Duration kMoment = std::chrono::microseconds(200);
constexpr Duration kShort = kMoment - Duration(1);

// How many such waits it takes until it looks on.
int waits_until_it_looks(WaitHabit& habit, Duration time) {
  int waits = 0;
  while (!habit.looks_on() && waits < 20'000) {
    habit.slept(time);
    ++waits;
  }
  return waits;
}

TEST(WaitHabit, LooksOnAfterSomeShortWaits) {
  WaitHabit habit(kMoment);
  EXPECT_FALSE(habit.looks_on());
  EXPECT_EQ(waits_until_it_looks(habit, kShort), 4);
}

TEST(WaitHabit, OneLongWaitEndsIt) {
  WaitHabit habit(kMoment);
  (void)waits_until_it_looks(habit, kShort);
  habit.slept(kMoment);
  EXPECT_EQ(waits_until_it_looks(habit, kShort), 4);
}

TEST(WaitHabit, NeverLooksOnForLongWaits) {
  WaitHabit habit(kMoment);
  EXPECT_EQ(waits_until_it_looks(habit, kMoment), 20'000);
}

TEST(WaitHabit, ALookInVainEndsItForSomeWaitsOfAnyLength) {
  WaitHabit habit(kMoment);
  (void)waits_until_it_looks(habit, kShort);
  habit.looked_in_vain();
  EXPECT_FALSE(habit.others_compute());
  for (int i = 0; i < 8; ++i) habit.did_not_wait();
  for (int i = 0; i < 8; ++i) habit.slept(kMoment);
  EXPECT_EQ(waits_until_it_looks(habit, kShort), 4);
}

TEST(WaitHabit, OthersThatComputeEndItForMany) {
  WaitHabit habit(kMoment);
  (void)waits_until_it_looks(habit, kShort);
  EXPECT_TRUE(habit.others_ran(std::chrono::microseconds(5)));
  EXPECT_TRUE(habit.looks_on());
  EXPECT_FALSE(habit.others_ran(std::chrono::milliseconds(3)));
  EXPECT_TRUE(habit.others_compute());
  habit.looked_in_vain();  // says less
  EXPECT_EQ(waits_until_it_looks(habit, kShort), 512 + 4);
  EXPECT_FALSE(habit.others_compute());
}

TEST(WaitHabit, LooksLessAndLessWhileTheyAreInVain) {
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
