#include "faults/flaps.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::faults {
namespace {

constexpr Time kBegin{};
constexpr Duration kDown = std::chrono::milliseconds(100);
constexpr Duration kUp = std::chrono::milliseconds(300);

std::vector<Duration> periods_of(Flaps flaps, int count) {
  std::vector<Duration> all;
  Time last_change = kBegin;
  for (int i = 0; i < count; ++i) {
    const Time next_change = flaps.next_deadline();
    all.push_back(next_change - last_change);
    EXPECT_TRUE(flaps.advance(next_change));
    last_change = next_change;
  }
  return all;
}

TEST(Flaps, TheLinkIsDownFirstAndThenUp) {
  Flaps flaps({.down = kDown, .up = kUp}, kBegin);
  EXPECT_FALSE(flaps.is_up());
  EXPECT_FALSE(flaps.advance(kBegin + kDown / 2)) << "an early call changes nothing";
  EXPECT_TRUE(flaps.advance(kBegin + kDown));
  EXPECT_TRUE(flaps.is_up());
  EXPECT_EQ(flaps.next_deadline(), kBegin + kDown + kUp);
  EXPECT_TRUE(flaps.advance(kBegin + kDown + kUp));
  EXPECT_FALSE(flaps.is_up());
}

TEST(Flaps, ALateCallAdvancesOverSeveralPeriods) {
  Flaps flaps({.down = kDown, .up = kUp}, kBegin);
  EXPECT_FALSE(flaps.advance(kBegin + 10 * (kDown + kUp)));
  EXPECT_FALSE(flaps.is_up());
  EXPECT_EQ(flaps.next_deadline(), kBegin + 10 * (kDown + kUp) + kDown);
}

TEST(Flaps, PeriodsAreConstantWithoutASeed) {
  EXPECT_EQ(periods_of(Flaps({.down = kDown, .up = kUp}, kBegin), 4),
            (std::vector<Duration>{kDown, kUp, kDown, kUp}));
}

TEST(Flaps, TheSeedDeterminesTheRandomPeriods) {
  const auto with_seed = [](std::uint64_t seed) {
    return periods_of(Flaps({.down = kDown, .up = kUp, .seed = seed}, kBegin), 50);
  };
  const auto periods = with_seed(7);
  EXPECT_EQ(with_seed(7), periods);
  EXPECT_NE(with_seed(8), periods);
  for (std::size_t i = 0; i < periods.size(); ++i) {
    const Duration mean = i % 2 == 0 ? kDown : kUp;
    EXPECT_GE(periods[i], mean / 2);
    EXPECT_LE(periods[i], mean / 2 + mean);
  }
}

}  // namespace
}  // namespace verbena::faults
