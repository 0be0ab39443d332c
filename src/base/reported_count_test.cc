#include "base/reported_count.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace verbena {
namespace {

using std::chrono::seconds;

constexpr Time kBegin{seconds(100)};

TEST(ReportedCount, AddsWhatAProgramCanCount) {
  ReportedCount count(kBegin);
  count.update(1000, kBegin);
  count.update(5000, kBegin + seconds(1));
  EXPECT_EQ(count.value(), 5000u);
  EXPECT_EQ(count.implausible(), 0u);
}

TEST(ReportedCount, AnImpossibleIncreaseAddsNothing) {
  ReportedCount count(kBegin);
  count.update(1000, kBegin);
  count.update(79'991'436'625'481'677, kBegin + seconds(1));
  EXPECT_EQ(count.value(), 1000u);
  EXPECT_EQ(count.implausible(), 1u);
  count.update(79'991'436'625'481'678, kBegin + seconds(2));
  EXPECT_EQ(count.value(), 1001u) << "later increases count again";
}

TEST(ReportedCount, ADecreaseAddsNothing) {
  ReportedCount count(kBegin);
  count.update(1000, kBegin);
  count.update(10, kBegin + seconds(1));
  EXPECT_EQ(count.value(), 1000u);
  EXPECT_EQ(count.implausible(), 1u);
}

TEST(ReportedCount, ManyReadsAllowNoMoreThanOne) {
  ReportedCount count(kBegin);
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    count.update(i * ReportedCount::kPerSecondMax / 2, kBegin);
  }
  EXPECT_LE(count.value(), ReportedCount::kPerSecondMax);
  EXPECT_GT(count.implausible(), 0u);
}

TEST(ReportedCount, AShortCounterWrapsAround) {
  ReportedCount count(kBegin, 48);
  const std::uint64_t last = (std::uint64_t{1} << 48) - 10;
  count.update(last, kBegin + seconds(10'000));
  count.update(5, kBegin + seconds(10'001));
  EXPECT_EQ(count.value(), last + 15);
  EXPECT_EQ(count.implausible(), 0u);
}

}  // namespace
}  // namespace verbena
