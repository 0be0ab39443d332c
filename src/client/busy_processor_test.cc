#include "client/busy_processor.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/random.h"

namespace verbena::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Time kBegin{seconds(10)};

TEST(BusyProcessor, ShortYieldsNeverMakeTheThreadSleep) {
  BusyProcessor processor;
  Time now = kBegin;
  for (int i = 0; i < 10'000; ++i, now += microseconds(100)) {
    processor.yielded(now, now + microseconds(90));
    ASSERT_FALSE(processor.should_sleep(now));
  }
}

TEST(BusyProcessor, ALateYieldMakesTheThreadSleepForAWhile) {
  BusyProcessor processor;
  const Time late = kBegin + milliseconds(4);
  processor.yielded(kBegin, late);
  EXPECT_TRUE(processor.should_sleep(late));
  EXPECT_TRUE(processor.should_sleep(late + BusyProcessor::kSleepsMin - microseconds(1)));
  EXPECT_FALSE(processor.should_sleep(late + BusyProcessor::kSleepsMin));
}

// Passes `duration` like a poll that never finds anything: sleeps for 100 us if it should, and
// otherwise yields for `yield_time`.  Returns how often it yields.
int count_yields(BusyProcessor& processor, Time& now, Duration duration, Duration yield_time) {
  int yields = 0;
  for (const Time end = now + duration; now < end;) {
    if (processor.should_sleep(now)) {
      now += microseconds(100);
      continue;
    }
    processor.yielded(now, now + yield_time);
    now += yield_time;
    ++yields;
  }
  return yields;
}

TEST(BusyProcessor, YieldsRarelyWhileTheProcessorStaysBusy) {
  BusyProcessor processor;
  Time now = kBegin;
  EXPECT_LE(count_yields(processor, now, seconds(2), milliseconds(4)), 6);
  EXPECT_LE(count_yields(processor, now, seconds(20), milliseconds(4)), 11);
  EXPECT_GE(count_yields(processor, now, seconds(20), milliseconds(4)), 9);
}

TEST(BusyProcessor, YieldsAgainSoonAfterTheProcessorBecameFree) {
  BusyProcessor processor;
  Time now = kBegin;
  (void)count_yields(processor, now, seconds(60), milliseconds(4));
  now += BusyProcessor::kSleepsMax;
  EXPECT_GE(count_yields(processor, now, milliseconds(10), microseconds(20)), 500);
}

TEST(BusyProcessor, ALateYieldLongAfterTheLastStartsWithTheShortestSleepAgain) {
  BusyProcessor processor;
  Time now = kBegin;
  (void)count_yields(processor, now, seconds(60), milliseconds(4));
  (void)count_yields(processor, now, seconds(10), microseconds(20));
  processor.yielded(now, now + milliseconds(4));
  now += milliseconds(4);
  EXPECT_TRUE(processor.should_sleep(now));
  EXPECT_FALSE(processor.should_sleep(now + BusyProcessor::kSleepsMin));
}

// Whatever the yields take, the thread tries a yield again within the longest sleep.
TEST(BusyProcessor, NeverSleepsForLongerThanItsLimit) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    BusyProcessor processor;
    Time now = kBegin;
    for (int i = 0; i < 200; ++i) {
      const Duration yield_time = microseconds(random.below(6'000));
      processor.yielded(now, now + yield_time);
      now += yield_time;
      ASSERT_FALSE(processor.should_sleep(now + BusyProcessor::kSleepsMax)) << "seed " << seed;
      if (random.below(2) == 0) now += milliseconds(random.below(3'000));
    }
  }
}

}  // namespace
}  // namespace verbena::client
