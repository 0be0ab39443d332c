#include "base/counter_names.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

enum class Fruit : std::uint8_t { kApple, kPear, kCount };
using FruitNames = std::array<CounterName<Fruit>, 2>;

struct Basket {
  std::uint64_t apples = 0;
  std::uint64_t pears = 0;
};
using BasketNames = std::array<MemberName<Basket>, 2>;

TEST(CounterNames, CompleteTablesNameEachCounterOnce) {
  constexpr FruitNames fruits{{{Fruit::kApple, "apple"}, {Fruit::kPear, "pear"}}};
  static_assert(names_every_counter(fruits));
  EXPECT_STREQ(name_of(fruits, Fruit::kPear), "pear");
  EXPECT_STREQ(name_of(fruits, Fruit::kCount), "?");
  static_assert(names_every_counter(BasketNames{{{&Basket::apples, "a"}, {&Basket::pears, "p"}}}));
}

TEST(CounterNames, IncompleteTablesAreRefused) {
  static_assert(
      !names_every_counter(std::array<CounterName<Fruit>, 1>{{{Fruit::kApple, "apple"}}}));
  static_assert(
      !names_every_counter(FruitNames{{{Fruit::kPear, "pear"}, {Fruit::kApple, "apple"}}}));
  static_assert(
      !names_every_counter(FruitNames{{{Fruit::kApple, "same"}, {Fruit::kPear, "same"}}}));
  static_assert(!names_every_counter(std::array<MemberName<Basket>, 1>{{{&Basket::apples, "a"}}}));
  static_assert(
      !names_every_counter(BasketNames{{{&Basket::apples, "a"}, {&Basket::apples, "p"}}}));
  static_assert(
      !names_every_counter(BasketNames{{{&Basket::apples, "same"}, {&Basket::pears, "same"}}}));
}

}  // namespace
}  // namespace verbena
