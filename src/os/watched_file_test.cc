#include "os/watched_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace verbena::os {
namespace {

TEST(WatchedFile, ReportsThatAProcessOpensTheFileAndEnds) {
  auto file = WatchedFile::create("held");
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->next_events().empty());
  const std::string path = "/proc/self/fd/" + std::to_string(file->file());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::open(path.c_str(), O_RDONLY | O_NONBLOCK) >= 0 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(file->next_events(), (std::vector{true, false}));
  EXPECT_TRUE(file->next_events().empty());
}

}  // namespace
}  // namespace verbena::os
