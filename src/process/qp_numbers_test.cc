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
constexpr auto kNotInUse = [](Qpn) { return false; };

class QpNumbersTest : public testing::Test {
 protected:
  QpNumbersTest() { numbers.add_range(kOnlyRange, random); }
  std::optional<Qpn> choose(Time now = kFirstUse) { return numbers.choose(now, kNotInUse); }
  // Chooses every number, marks it as known to a peer and releases it.  Returns the numbers in
  // order.
  std::vector<Qpn> use_all() {
    std::vector<Qpn> used;
    for (std::uint32_t i = 0; i < kAll; ++i) {
      used.push_back(*choose());
      numbers.mark_known_to_peer(used.back());
      numbers.release(used.back(), kFirstUse);
    }
    return used;
  }

  Random random{1};
  QpNumbers numbers;
};

TEST_F(QpNumbersTest, EachNumberOfARangeIsChosenOnce) {
  std::set<Qpn> seen;
  for (std::uint32_t i = 0; i < kAll; ++i) {
    const auto qpn = choose();
    ASSERT_TRUE(qpn.has_value());
    EXPECT_TRUE(numbers.has_leased(*qpn));
    EXPECT_TRUE(seen.insert(*qpn).second);
  }
  EXPECT_EQ(seen.begin()->value, kOnlyRange * kAll);
  EXPECT_FALSE(choose().has_value());
}

// In a random order, the numbers of two QPs that are chosen one after the other are adjacent by
// chance in one of 2,048 cases.
TEST_F(QpNumbersTest, NumbersAreChosenInRandomOrder) {
  int neighbours = 0;
  Qpn last = *choose();
  for (std::uint32_t i = 1; i < kAll; ++i) {
    const Qpn next = *choose();
    if (next.value == last.value + 1 || next.value + 1 == last.value) ++neighbours;
    last = next;
  }
  EXPECT_LT(neighbours, 20);
}

TEST_F(QpNumbersTest, NumbersKnownToAPeerAreQuarantinedInOrder) {
  const std::vector<Qpn> used = use_all();
  EXPECT_FALSE(choose(kFirstUse + QpNumbers::kQuarantine - Duration(1)).has_value());
  EXPECT_EQ(choose(kFirstUse + QpNumbers::kQuarantine), used[0]);
  EXPECT_EQ(choose(kFirstUse + QpNumbers::kQuarantine), used[1]);
}

TEST_F(QpNumbersTest, NumbersUnknownToPeersAreNotQuarantined) {
  use_all();
  numbers.add_range(kOnlyRange + 1, random);
  const Qpn known = *choose();
  numbers.mark_known_to_peer(known);
  numbers.release(known, kFirstUse);
  for (std::uint32_t i = 0; i < 3 * kAll; ++i) {
    const Qpn qpn = *choose();
    EXPECT_NE(qpn, known);
    numbers.release(qpn, kFirstUse);
  }
}

TEST_F(QpNumbersTest, ANewRangeIsUsedBeforeQuarantinedNumbers) {
  use_all();
  numbers.add_range(kOnlyRange + 1, random);
  EXPECT_EQ(choose()->value / kAll, kOnlyRange + 1u);
  EXPECT_THAT(numbers.ranges(), testing::ElementsAre(kOnlyRange, kOnlyRange + 1));
}

TEST_F(QpNumbersTest, TheOldestQuarantinedNumberMayBeChosenEarly) {
  const std::vector<Qpn> used = use_all();
  EXPECT_EQ(numbers.choose_quarantined(kNotInUse), used[0]);
  EXPECT_FALSE(choose().has_value());
}

TEST_F(QpNumbersTest, NumbersInUseAreNotChosen) {
  Random same_order{1};
  QpNumbers copy;
  copy.add_range(kOnlyRange, same_order);
  const Qpn first = *copy.choose(kFirstUse, kNotInUse);
  const auto in_use = [&](Qpn qpn) { return qpn == first; };
  EXPECT_NE(numbers.choose(kFirstUse, in_use), first);
  numbers.release(first, kFirstUse);
  numbers.release(first, kFirstUse);
  for (std::uint32_t i = 0; i < kAll - 2; ++i) choose();
  EXPECT_FALSE(numbers.choose(kFirstUse, in_use).has_value());
}

TEST_F(QpNumbersTest, NumbersOfADeadAgentsRangeAreNotChosen) {
  const Qpn old = *choose();
  numbers.clear();
  numbers.release(old, kFirstUse);
  EXPECT_FALSE(choose().has_value());
  EXPECT_FALSE(numbers.has_leased(old));
}

}  // namespace
}  // namespace verbena::process
