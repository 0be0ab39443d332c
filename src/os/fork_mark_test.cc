#include "os/fork_mark.h"

#include <sys/syscall.h>

#include <csignal>

#include "gtest/gtest.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

TEST(ForkMark, IsClearedInEveryCopyOfTheProcess) {
  const auto mark = ForkMark::create();
  ASSERT_TRUE(mark.has_value());
  EXPECT_FALSE(mark->is_in_forked_child());
  EXPECT_EQ(run_in_child([&] { EXPECT_TRUE(mark->is_in_forked_child()); }), 0);
  const long pid = ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);  // runs no fork handlers
  if (pid == 0) ::_exit(mark->is_in_forked_child() ? 3 : 4);
  int status = 0;
  ASSERT_EQ(::waitpid(static_cast<pid_t>(pid), &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_FALSE(mark->is_in_forked_child());
}

}  // namespace
}  // namespace verbena::os
