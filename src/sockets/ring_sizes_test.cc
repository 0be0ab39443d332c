#include "sockets/ring_sizes.h"

#include <gtest/gtest.h>

namespace verbena::sockets {
namespace {

// Makes rings for `count` more connections.
void make(RingSizes& sizes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sizes.add(sizes.choose());
}

TEST(RingSizes, TheFirstConnectionsHaveLargeRings) {
  RingSizes sizes;
  make(sizes, RingSizes::kLargeMax - 1);
  EXPECT_EQ(sizes.choose(), RingSizes::kLargeRingBytes);
  make(sizes, 1);
  EXPECT_EQ(sizes.choose(), RingSizes::kMediumRingBytes);
}

TEST(RingSizes, TheRingsOfManyConnectionsAreSmall) {
  RingSizes sizes;
  make(sizes, RingSizes::kLargeMax + RingSizes::kMediumMax - 1);
  EXPECT_EQ(sizes.choose(), RingSizes::kMediumRingBytes);
  make(sizes, 1);
  EXPECT_EQ(sizes.choose(), RingSizes::kSmallRingBytes);
  make(sizes, 100'000);
  EXPECT_EQ(sizes.choose(), RingSizes::kSmallRingBytes);
}

TEST(RingSizes, NextConnectionGetsTheSizeOfAnEndedConnection) {
  RingSizes sizes;
  make(sizes, RingSizes::kLargeMax + RingSizes::kMediumMax + 5);
  sizes.remove(RingSizes::kMediumRingBytes);
  EXPECT_EQ(sizes.choose(), RingSizes::kMediumRingBytes);
  sizes.remove(RingSizes::kLargeRingBytes);
  EXPECT_EQ(sizes.choose(), RingSizes::kLargeRingBytes);
}

TEST(RingSizes, ChoosesTheLargestSizeThatTheLimitAllows) {
  RingSizes sizes;
  EXPECT_EQ(sizes.choose(RingSizes::kLargeRingBytes - 1), RingSizes::kMediumRingBytes);
  EXPECT_EQ(sizes.choose(RingSizes::kMediumRingBytes - 1), RingSizes::kSmallRingBytes);
  EXPECT_EQ(sizes.choose(RingSizes::kSmallRingBytes - 1), 0U);
}

}  // namespace
}  // namespace verbena::sockets
