#include "os/host_checks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>

#include "os/clock.h"
#include "os/roce_port.h"

namespace verbena::os {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(20);

TEST(HostChecks, FeaturesThatOtherTestsUseWork) {
  EXPECT_TRUE(try_shared_memory(4096).works);
  EXPECT_TRUE(try_steering(RocePort::kLeasesMax).works);
  EXPECT_TRUE(try_pidfd().works);
}

TEST(HostChecks, FailureReportsItsErrno) {
  // This many rules need more instructions than a filter may have.
  const CheckResult result = try_steering(30'000);
  EXPECT_FALSE(result.works);
  EXPECT_NE(result.error, 0);
}

TEST(HostChecks, ReportEmfileWithoutDescriptors) {
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  rlimit no_files = old_limit;
  no_files.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &no_files), 0);
  const CheckResult memory = try_shared_memory(4096);
  const CheckResult pidfd = try_pidfd();
  EXPECT_EQ(open_files_limit().soft, 0u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  EXPECT_EQ(memory.error, EMFILE);
  EXPECT_EQ(pidfd.error, EMFILE);
  EXPECT_EQ(open_files_limit().soft, old_limit.rlim_cur);
}

TEST(HostChecks, BufferSizesAreAtLeastTheRequestedSizes) {
  EXPECT_GE(receive_buffer_bytes(65536), 65536u);
  EXPECT_GE(send_buffer_bytes(65536), 65536u);
  if (const auto bytes_max = sysctl("/proc/sys/net/core/rmem_max")) {
    EXPECT_GT(*bytes_max, 1000u);
  }
  EXPECT_FALSE(sysctl("/proc/sys/no/such/number"));
}

TEST(HostChecks, RunProgramReturnsOutputAndStatus) {
  const auto output =
      run_program({"/bin/sh", "-c", "echo $A; echo b >&2; exit 3"}, {"A=a"}, now() + kTimeout);
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->text, "a\nb\n");
  EXPECT_EQ(WEXITSTATUS(output->status), 3);
  EXPECT_FALSE(run_program({"/no/such/program"}, {}, now() + kTimeout));
}

TEST(HostChecks, RunProgramKillsAProgramThatHangs) {
  EXPECT_FALSE(run_program({"/bin/sh", "-c", "exec sleep 1000"}, {"PATH=/bin:/usr/bin"},
                           now() + std::chrono::milliseconds(50)));
}

TEST(HostChecks, RunProgramKillsAProgramThatHangsAfterItsOutput) {
  EXPECT_FALSE(run_program({"/bin/sh", "-c", "exec sleep 1000 >&- 2>&-"}, {"PATH=/bin:/usr/bin"},
                           now() + std::chrono::milliseconds(50)));
}

TEST(HostChecks, RunProgramReturnsTheFirst64KibOfALongOutput) {
  const auto output = run_program({"/bin/sh", "-c", "head -c 300000 /dev/zero; exit 4"},
                                  {"PATH=/bin:/usr/bin"}, now() + kTimeout);
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->text.size(), 65536u);
  EXPECT_EQ(WEXITSTATUS(output->status), 4);
}

TEST(HostChecks, UserWithoutANameIsShownByNumber) {
  EXPECT_EQ(user_name(3'999'999'999), "user id 3999999999");
  EXPECT_FALSE(user_name(0).empty());
}

}  // namespace
}  // namespace verbena::os
