#include "os/heap.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

TEST(HeapTrim, IsDueEachTimeManyObjectsShrinkToAnEighth) {
  HeapTrim heap;
  EXPECT_FALSE(heap.holds(1000));
  EXPECT_FALSE(heap.holds(0));  // too few to count
  EXPECT_FALSE(heap.holds(40000));
  EXPECT_FALSE(heap.holds(5001));
  EXPECT_TRUE(heap.holds(5000));
  EXPECT_FALSE(heap.holds(626));
  EXPECT_TRUE(heap.holds(625));
  EXPECT_TRUE(heap.holds(60));
  EXPECT_FALSE(heap.holds(1000));
  EXPECT_FALSE(heap.holds(0));  // there were too few again
}

}  // namespace
}  // namespace verbena::os
