#include "agent/log.h"

#include <gtest/gtest.h>

#include <string>

namespace verbena::agent {
namespace {

TEST(Log, StoresTheLastLinesOfAllItsParts) {
  Log log;
  log.store_lines(3);
  Log part = log.named("a");
  for (const char* text : {"one", "two", "three"}) log.line(text);
  part.line("four");
  const Log::StoredLines all = log.stored_lines(0, 100);
  ASSERT_EQ(all.lines.size(), 3U);
  EXPECT_TRUE(all.lines[0].ends_with("] two")) << all.lines[0];
  EXPECT_TRUE(all.lines[2].ends_with("] a: four")) << all.lines[2];
  EXPECT_EQ(all.next, 4U);
  EXPECT_FALSE(all.more);
}

TEST(Log, ReturnsStoredLinesInPages) {
  Log log;
  log.store_lines(3);
  for (int i = 0; i < 5; ++i) log.line(std::to_string(i));
  const Log::StoredLines first = log.stored_lines(0, 2);
  EXPECT_EQ(first.lines.size(), 2U);
  EXPECT_TRUE(first.more);
  const Log::StoredLines second = log.stored_lines(first.next, 2);
  ASSERT_EQ(second.lines.size(), 1U);
  EXPECT_TRUE(second.lines[0].ends_with("] 4"));
  EXPECT_FALSE(second.more);
  EXPECT_TRUE(log.stored_lines(~std::uint64_t{0}, 2).lines.empty());
}

TEST(Log, StoredLinesAreCutAndEscaped) {
  Log log;
  log.store_lines(1);
  log.line(std::string(10000, 'x') + "\n");
  EXPECT_EQ(log.stored_lines(0, 1).lines.at(0).size(), Log::kStoredLineBytesMax);
  log.line("a\nb");
  EXPECT_EQ(log.stored_lines(0, 1).lines.at(0).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace verbena::agent
