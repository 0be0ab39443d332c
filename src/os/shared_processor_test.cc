#include "os/shared_processor.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Yields `count` times, each time for `yield_time`.  Returns how often the thread should sleep.
int count_sleeps(SharedProcessor& processor, Time& now, int count, Duration yield_time) {
  int sleeps = 0;
  for (int i = 0; i < count; ++i, now += yield_time) {
    if (processor.yielded(now, now + yield_time)) ++sleeps;
  }
  return sleeps;
}

TEST(SharedProcessor, NeverSleepsIfNoOtherThreadRuns) {
  SharedProcessor processor;
  Time now{std::chrono::seconds(1)};
  EXPECT_EQ(count_sleeps(processor, now, 100'000, microseconds(1)), 0);
}

TEST(SharedProcessor, SleepsSoonAndThenRarelyIfAnotherThreadRuns) {
  SharedProcessor processor;
  Time now{std::chrono::seconds(1)};
  EXPECT_EQ(count_sleeps(processor, now, 7, microseconds(6)), 0);
  EXPECT_EQ(count_sleeps(processor, now, 1, microseconds(6)), 1);
  const Time begin = now;
  EXPECT_EQ(count_sleeps(processor, now, 1000, microseconds(100)), 20);
  EXPECT_EQ(now - begin, milliseconds(100));
}

TEST(SharedProcessor, OneShortYieldStartsTheCountAgain) {
  SharedProcessor processor;
  Time now{std::chrono::seconds(1)};
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(count_sleeps(processor, now, 7, microseconds(50)), 0);
    EXPECT_EQ(count_sleeps(processor, now, 1, microseconds(1)), 0);
  }
}

}  // namespace
}  // namespace verbena::os
