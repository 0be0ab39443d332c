#include "process/qp_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace verbena::process {
namespace {

constexpr std::uint16_t kRange = 0x25d;
constexpr std::uint32_t kAll = ipc::kLeaseQpns;
constexpr Time kNow{std::chrono::seconds(100)};
constexpr auto kNobody = [](Qpn) { return false; };

class QpNumbersTest : public testing::Test {
 protected:
  QpNumbersTest() { numbers.add_range(kRange, 4000); }
  std::optional<Qpn> take(Time now = kNow) { return numbers.take(now, kNobody); }
  // Every number, used by a QP that a peer has heard of, and given back.
  void use_all() {
    for (std::uint32_t i = 0; i < kAll; ++i) {
      const Qpn one = *take();
      numbers.told(one);
      numbers.give_back(one, kNow);
    }
  }

  QpNumbers numbers;
};

TEST_F(QpNumbersTest, AllOfARangeAreGivenOnce) {
  std::set<Qpn> given;
  for (std::uint32_t i = 0; i < kAll; ++i) {
    const auto one = take();
    ASSERT_TRUE(one.has_value());
    EXPECT_TRUE(numbers.has_leased(*one));
    EXPECT_TRUE(given.insert(*one).second);
  }
  EXPECT_EQ(given.begin()->value, kRange * kAll);
  EXPECT_FALSE(take().has_value());
}

TEST_F(QpNumbersTest, WhatAPeerMayKnowRestsAndComesBackInItsOrder) {
  use_all();
  EXPECT_FALSE(take(kNow + QpNumbers::kRest - Duration(1)).has_value());
  EXPECT_EQ(take(kNow + QpNumbers::kRest)->value % kAll, 4000u);
  EXPECT_EQ(take(kNow + QpNumbers::kRest)->value % kAll, 4001u);
}

TEST_F(QpNumbersTest, WhatNoPeerHasHeardOfNeedsNoRestAndWaitsForNone) {
  use_all();
  numbers.add_range(kRange + 1, 0);
  const Qpn told = *take();
  numbers.told(told);
  numbers.give_back(told, kNow);
  for (std::uint32_t i = 0; i < 3 * kAll; ++i) {
    const Qpn one = *take();
    EXPECT_NE(one, told);
    numbers.give_back(one, kNow);
  }
}

TEST_F(QpNumbersTest, AnotherRangeComesBeforeWhatRests) {
  use_all();
  numbers.add_range(kRange + 1, 0);
  EXPECT_EQ(take()->value, (kRange + 1) * kAll);
  EXPECT_THAT(numbers.ranges(), testing::ElementsAre(kRange, kRange + 1));
}

TEST_F(QpNumbersTest, WithoutAnotherRangeTheOldestIsGivenBeforeItsTime) {
  use_all();
  EXPECT_EQ(numbers.take_resting(kNobody)->value % kAll, 4000u);
  EXPECT_FALSE(take().has_value());
}

TEST_F(QpNumbersTest, WhatAQpHasIsNotGiven) {
  const Qpn first{kRange * kAll + 4000};
  const auto in_use = [&](Qpn qpn) { return qpn == first; };
  EXPECT_EQ(numbers.take(kNow, in_use)->value, first.value + 1);
  numbers.give_back(first, kNow);
  numbers.give_back(first, kNow);
  for (std::uint32_t i = 0; i < kAll - 2; ++i) take();
  EXPECT_FALSE(numbers.take(kNow, in_use).has_value());
}

TEST_F(QpNumbersTest, NothingOfAnotherAgentsRangeIsKept) {
  const Qpn old = *take();
  numbers.clear();
  numbers.give_back(old, kNow);
  EXPECT_FALSE(take().has_value());
  EXPECT_FALSE(numbers.has_leased(old));
}

}  // namespace
}  // namespace verbena::process
