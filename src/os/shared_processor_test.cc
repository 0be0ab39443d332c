#include "os/shared_processor.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Yields `count` times, each for this time, and returns how often the thread should have slept.
int sleeps(SharedProcessor& processor, Time& now, int count, Duration each) {
  int slept = 0;
  for (int i = 0; i < count; ++i, now += each) slept += processor.yielded(now, now + each) ? 1 : 0;
  return slept;
}

TEST(SharedProcessor, AThreadThatIsAloneNeverSleeps) {
  SharedProcessor processor;
  Time now{std::chrono::seconds(1)};
  EXPECT_EQ(sleeps(processor, now, 100'000, microseconds(1)), 0);
}

TEST(SharedProcessor, AThreadWhosePeerSharesItsProcessorSleepsSoonAndThenRarely) {
  SharedProcessor processor;
  Time now{std::chrono::seconds(1)};
  EXPECT_EQ(sleeps(processor, now, 7, microseconds(6)), 0);
  EXPECT_EQ(sleeps(processor, now, 1, microseconds(6)), 1);
  const Time begin = now;
  EXPECT_EQ(sleeps(processor, now, 1000, microseconds(100)), 20);
  EXPECT_EQ(now - begin, milliseconds(100));
}

TEST(SharedProcessor, AThreadThatRunsOnceChangesNothing) {
  SharedProcessor processor;
  Time now{std::chrono::seconds(1)};
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sleeps(processor, now, 7, microseconds(50)), 0);
    EXPECT_EQ(sleeps(processor, now, 1, microseconds(1)), 0);
  }
}

}  // namespace
}  // namespace verbena::os
