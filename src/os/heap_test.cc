#include "os/heap.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

TEST(HeapTrim, IsDueEachTimeTheNumberOfObjectsFallsToAnEighth) {
  HeapTrim trim;
  EXPECT_FALSE(trim.trim_if_due(1000));
  EXPECT_FALSE(trim.trim_if_due(0));  // there were never 1024 objects
  EXPECT_FALSE(trim.trim_if_due(40000));
  EXPECT_FALSE(trim.trim_if_due(5001));
  EXPECT_TRUE(trim.trim_if_due(5000));
  EXPECT_FALSE(trim.trim_if_due(626));
  EXPECT_TRUE(trim.trim_if_due(625));
  EXPECT_TRUE(trim.trim_if_due(60));
  EXPECT_FALSE(trim.trim_if_due(1000));
  EXPECT_FALSE(trim.trim_if_due(0));  // there were never 1024 objects since the last trim
}

}  // namespace
}  // namespace verbena::os
