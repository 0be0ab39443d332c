#include "process/qp_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace verbena::process {
namespace {

constexpr std::uint16_t kOnlyRange = 0x25d;
constexpr std::uint32_t kAll = ipc::kLeaseQpns;
constexpr Time kFirstUse{std::chrono::seconds(100)};
constexpr auto kNobody = [](Qpn) { return false; };

class QpNumbersTest : public testing::Test {
 protected:
  QpNumbersTest() { numbers.add_range(kOnlyRange, random); }
  std::optional<Qpn> take(Time now = kFirstUse) { return numbers.take(now, kNobody); }
  // Takes every number, lets a peer know it, and gives it back.  Returns the numbers in order.
  std::vector<Qpn> use_all() {
    std::vector<Qpn> used;
    for (std::uint32_t i = 0; i < kAll; ++i) {
      used.push_back(*take());
      numbers.mark_known(used.back());
      numbers.give_back(used.back(), kFirstUse);
    }
    return used;
  }

  Random random{1};
  QpNumbers numbers;
};

TEST_F(QpNumbersTest, EachNumberOfARangeIsGivenOnce) {
  std::set<Qpn> given;
  for (std::uint32_t i = 0; i < kAll; ++i) {
    const auto one = take();
    ASSERT_TRUE(one.has_value());
    EXPECT_TRUE(numbers.has_leased(*one));
    EXPECT_TRUE(given.insert(*one).second);
  }
  EXPECT_EQ(given.begin()->value, kOnlyRange * kAll);
  EXPECT_FALSE(take().has_value());
}

// In a random order, one pair of neighbours in 2,048 has adjacent numbers by chance.
TEST_F(QpNumbersTest, NumbersAreGivenInRandomOrder) {
  int neighbours = 0;
  Qpn last = *take();
  for (std::uint32_t i = 1; i < kAll; ++i) {
    const Qpn next = *take();
    if (next.value == last.value + 1 || next.value + 1 == last.value) ++neighbours;
    last = next;
  }
  EXPECT_LT(neighbours, 20);
}

TEST_F(QpNumbersTest, NumbersKnownToAPeerAreQuarantinedInOrder) {
  const std::vector<Qpn> used = use_all();
  EXPECT_FALSE(take(kFirstUse + QpNumbers::kQuarantine - Duration(1)).has_value());
  EXPECT_EQ(take(kFirstUse + QpNumbers::kQuarantine), used[0]);
  EXPECT_EQ(take(kFirstUse + QpNumbers::kQuarantine), used[1]);
}

TEST_F(QpNumbersTest, NumbersUnknownToPeersAreNotQuarantined) {
  use_all();
  numbers.add_range(kOnlyRange + 1, random);
  const Qpn known = *take();
  numbers.mark_known(known);
  numbers.give_back(known, kFirstUse);
  for (std::uint32_t i = 0; i < 3 * kAll; ++i) {
    const Qpn one = *take();
    EXPECT_NE(one, known);
    numbers.give_back(one, kFirstUse);
  }
}

TEST_F(QpNumbersTest, ANewRangeIsUsedBeforeQuarantinedNumbers) {
  use_all();
  numbers.add_range(kOnlyRange + 1, random);
  EXPECT_EQ(take()->value / kAll, kOnlyRange + 1u);
  EXPECT_THAT(numbers.ranges(), testing::ElementsAre(kOnlyRange, kOnlyRange + 1));
}

TEST_F(QpNumbersTest, TheOldestQuarantinedNumberMayBeTakenEarly) {
  const std::vector<Qpn> used = use_all();
  EXPECT_EQ(numbers.take_quarantined(kNobody), used[0]);
  EXPECT_FALSE(take().has_value());
}

TEST_F(QpNumbersTest, NumbersInUseAreNotGiven) {
  Random same_order{1};
  QpNumbers copy;
  copy.add_range(kOnlyRange, same_order);
  const Qpn first = *copy.take(kFirstUse, kNobody);
  const auto in_use = [&](Qpn qpn) { return qpn == first; };
  EXPECT_NE(numbers.take(kFirstUse, in_use), first);
  numbers.give_back(first, kFirstUse);
  numbers.give_back(first, kFirstUse);
  for (std::uint32_t i = 0; i < kAll - 2; ++i) take();
  EXPECT_FALSE(numbers.take(kFirstUse, in_use).has_value());
}

TEST_F(QpNumbersTest, NumbersOfADeadAgentsRangeAreForgotten) {
  const Qpn old = *take();
  numbers.clear();
  numbers.give_back(old, kFirstUse);
  EXPECT_FALSE(take().has_value());
  EXPECT_FALSE(numbers.has_leased(old));
}

}  // namespace
}  // namespace verbena::process
