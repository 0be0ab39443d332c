#include "process/qp_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace verbena::process {
namespace {

constexpr std::uint16_t kFirstRange = 0x25d;
constexpr std::uint32_t kNumbersOfRange = ipc::kLeaseQpns;
constexpr Time kTimeOfFirstUse{std::chrono::seconds(100)};
constexpr auto kNotInUse = [](Qpn) { return false; };

class QpNumbersTest : public testing::Test {
 protected:
  QpNumbersTest() { numbers.add_range(kFirstRange, random); }
  std::optional<Qpn> choose(Time now = kTimeOfFirstUse) { return numbers.choose(now, kNotInUse); }
  // Chooses every number, marks it as known to a peer and releases it.  Returns the numbers in
  // order.
  std::vector<Qpn> use_all() {
    std::vector<Qpn> used;
    for (std::uint32_t i = 0; i < kNumbersOfRange; ++i) {
      used.push_back(*choose());
      numbers.mark_known_to_peer(used.back());
      numbers.release(used.back(), kTimeOfFirstUse);
    }
    return used;
  }

  Random random{1};
  QpNumbers numbers;
};

TEST_F(QpNumbersTest, EachNumberOfARangeIsChosenOnce) {
  std::set<Qpn> seen;
  for (std::uint32_t i = 0; i < kNumbersOfRange; ++i) {
    const auto qpn = choose();
    ASSERT_TRUE(qpn.has_value());
    EXPECT_TRUE(numbers.has_leased(*qpn));
    EXPECT_TRUE(seen.insert(*qpn).second);
  }
  EXPECT_EQ(seen.begin()->value, kFirstRange * kNumbersOfRange);
  EXPECT_FALSE(choose().has_value());
}

// In a random order, the numbers of two QPs that are chosen one after the other are adjacent by
// chance in one of 2,048 cases.
TEST_F(QpNumbersTest, NumbersAreChosenInRandomOrder) {
  int adjacent_pairs = 0;
  Qpn previous_qpn = *choose();
  for (std::uint32_t i = 1; i < kNumbersOfRange; ++i) {
    const Qpn qpn = *choose();
    if (qpn.value == previous_qpn.value + 1 || qpn.value + 1 == previous_qpn.value)
      ++adjacent_pairs;
    previous_qpn = qpn;
  }
  EXPECT_LT(adjacent_pairs, 20);
}

TEST_F(QpNumbersTest, NumbersKnownToAPeerAreQuarantinedInOrder) {
  const std::vector<Qpn> used = use_all();
  EXPECT_FALSE(choose(kTimeOfFirstUse + QpNumbers::kQuarantine - Duration(1)).has_value());
  EXPECT_EQ(choose(kTimeOfFirstUse + QpNumbers::kQuarantine), used[0]);
  EXPECT_EQ(choose(kTimeOfFirstUse + QpNumbers::kQuarantine), used[1]);
}

TEST_F(QpNumbersTest, NumbersUnknownToPeersAreNotQuarantined) {
  use_all();
  numbers.add_range(kFirstRange + 1, random);
  const Qpn known = *choose();
  numbers.mark_known_to_peer(known);
  numbers.release(known, kTimeOfFirstUse);
  for (std::uint32_t i = 0; i < 3 * kNumbersOfRange; ++i) {
    const Qpn qpn = *choose();
    EXPECT_NE(qpn, known);
    numbers.release(qpn, kTimeOfFirstUse);
  }
}

TEST_F(QpNumbersTest, ANewRangeIsUsedBeforeQuarantinedNumbers) {
  use_all();
  numbers.add_range(kFirstRange + 1, random);
  EXPECT_EQ(choose()->value / kNumbersOfRange, kFirstRange + 1u);
  EXPECT_THAT(numbers.ranges(), testing::ElementsAre(kFirstRange, kFirstRange + 1));
}

TEST_F(QpNumbersTest, TheOldestQuarantinedNumberMayBeChosenEarly) {
  const std::vector<Qpn> used = use_all();
  EXPECT_EQ(numbers.choose_quarantined(kNotInUse)->qpn, used[0]);
  EXPECT_FALSE(choose().has_value());
}

TEST_F(QpNumbersTest, TheQuarantineOfANumberThatNoQpGotContinues) {
  const std::vector<Qpn> used = use_all();
  numbers.return_to_quarantine(*numbers.choose_quarantined(kNotInUse));
  EXPECT_FALSE(choose(kTimeOfFirstUse + QpNumbers::kQuarantine - Duration(1)).has_value());
  EXPECT_EQ(choose(kTimeOfFirstUse + QpNumbers::kQuarantine), used[0]);
}

TEST_F(QpNumbersTest, NumbersInUseAreNotChosen) {
  Random same_order{1};
  QpNumbers copy;
  copy.add_range(kFirstRange, same_order);
  const Qpn first = *copy.choose(kTimeOfFirstUse, kNotInUse);
  const auto in_use = [&](Qpn qpn) { return qpn == first; };
  EXPECT_NE(numbers.choose(kTimeOfFirstUse, in_use), first);
  numbers.release(first, kTimeOfFirstUse);
  numbers.release(first, kTimeOfFirstUse);
  for (std::uint32_t i = 0; i < kNumbersOfRange - 2; ++i) choose();
  EXPECT_FALSE(numbers.choose(kTimeOfFirstUse, in_use).has_value());
}

TEST_F(QpNumbersTest, NumbersOfADeadAgentsRangeAreNotChosen) {
  const Qpn old_qpn = *choose();
  numbers.clear();
  numbers.release(old_qpn, kTimeOfFirstUse);
  EXPECT_FALSE(choose().has_value());
  EXPECT_FALSE(numbers.has_leased(old_qpn));
}

}  // namespace
}  // namespace verbena::process
