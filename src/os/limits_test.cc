#include "os/limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/fd.h"
#include "os/host_checks.h"

namespace verbena::os {
namespace {

constexpr AgentLimits kNoLimits{kUnlimited, kUnlimited, kUnlimited};

TEST(Limits, LowLimitIsNamed) {
  EXPECT_EQ(find_low_limit(kNoLimits), "");
  AgentLimits limits = kNoLimits;
  limits.open_files = 24;
  EXPECT_NE(find_low_limit(limits).find("RLIMIT_NOFILE) is 24,"), std::string::npos)
      << find_low_limit(limits);
  limits = kNoLimits;
  limits.cpu_seconds = 5;
  EXPECT_NE(find_low_limit(limits).find("RLIMIT_CPU) is 5,"), std::string::npos);
  limits = kNoLimits;
  limits.memory_bytes = 1000;
  EXPECT_NE(find_low_limit(limits).find("RLIMIT_AS"), std::string::npos);
}

TEST(Limits, LastFilesAreNotForPrograms) {
  EXPECT_TRUE(has_files_for_program(64, 32));
  EXPECT_FALSE(has_files_for_program(64, 57));
}

TEST(Limits, OpenFilesAreCounted) {
  const std::uint64_t before = count_open_files(0);
  const Fd one(::dup(0)), two(::dup(0));
  EXPECT_EQ(count_open_files(0), before + 2);
}

// Root may raise a hard limit, if it is root of the whole machine.
TEST(Limits, DaemonRaisesTheHardLimitOfOpenFilesIfItMay) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit low{24, 24}, higher{25, 25};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0) ::_exit(2);
    const bool may_raise = ::setrlimit(RLIMIT_NOFILE, &higher) == 0;
    set_daemon_limits();
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    ::_exit(may_raise ? now.rlim_cur > 1000 ? 0 : 1 : now.rlim_cur == 24 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace verbena::os
