#include "os/daemon.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/process.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Acts as a program that starts a shell script as its daemon.  The program must get no signal and
// no child from the daemon.
class Program {
 public:
  Program() {
    got_signal_ = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { got_signal_ = 1; };
    ::sigaction(SIGCHLD, &action, &old_action_);
    std::string name = "/tmp/reaper-test-XXXXXX";
    const Fd file(::mkostemp(name.data(), O_CLOEXEC));
    path_ = name;
    ::setenv("VERBENA_TEST_OUT", path_.c_str(), 1);
  }
  ~Program() {
    if (daemon_ > 0) ::kill(daemon_, SIGKILL);
    ::unlink(path_.c_str());
    ::unsetenv("VERBENA_TEST_OUT");
    ::sigaction(SIGCHLD, &old_action_, nullptr);
  }

  Result<Daemon> start(const std::string& script, Time deadline = now() + seconds(30)) {
    auto daemon = start_daemon(
        {.path = "/bin/sh", .args = {"testd", "-c", script}, .deadline = deadline}, problem_);
    const std::string pid_text = read_file(path_);
    daemon_ = static_cast<pid_t>(std::atol(pid_text.c_str()));
    return daemon;
  }

  void expect_no_signal_and_no_child() {
    EXPECT_EQ(got_signal_, 0);
    int status = 0;
    EXPECT_EQ(::waitpid(-1, &status, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  const std::string& problem() const { return problem_; }
  std::string output() const { return read_file(path_); }
  pid_t daemon() const { return daemon_; }

  // Returns a field of the daemon's /proc/PID/status.
  std::string status(const std::string& field) const {
    std::istringstream lines(read_file("/proc/" + std::to_string(daemon_) + "/status"));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(field + ":")) return line.substr(line.find('\t') + 1);
    }
    return "?";
  }

 private:
  static inline volatile std::sig_atomic_t got_signal_ = 0;
  struct sigaction old_action_ {};
  std::string path_;
  std::string problem_;
  pid_t daemon_ = 0;
};

// The shell writes its pid, reports that it is ready, and becomes `sleep`.
const std::string kSleepingDaemon =
    "echo $$ > $VERBENA_TEST_OUT; printf '\\0' >&3; exec 3>&-; exec sleep 1000";

TEST(Daemon, StartsWithoutTheProgramNoticing) {
  Program program;
  const auto daemon = program.start(kSleepingDaemon);
  ASSERT_TRUE(daemon.has_value()) << program.problem();
  EXPECT_FALSE(daemon->reaper_pidfd);
  program.expect_no_signal_and_no_child();
  EXPECT_EQ(::kill(program.daemon(), 0), 0);
  EXPECT_NE(program.status("PPid"), std::to_string(::getpid()));
  ::kill(program.daemon(), SIGKILL);
  const auto pidfd = open_pidfd(program.daemon());
  if (pidfd.has_value()) wait_for(pidfd->get(), POLLIN, now() + seconds(20)).value();
  program.expect_no_signal_and_no_child();
}

TEST(Daemon, InheritsNothingFromTheProgram) {
  Program program;
  const Fd leaked(::open("/dev/zero", O_RDONLY));  // without close-on-exec
  const mode_t old_umask = ::umask(077);
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
  ::signal(SIGUSR2, SIG_IGN);
  ::setenv("LD_LIBRARY_PATH", "/nowhere", 1);
  const auto daemon = program.start(
      "{ echo $$; umask; pwd; env | sort | grep -v ^PWD= | grep -v ^_= | cut -d= -f1; } > "
      "$VERBENA_TEST_OUT;"
      " printf '\\0' >&3; exec 3>&-; kill -STOP $$");
  ::unsetenv("LD_LIBRARY_PATH");
  ::signal(SIGUSR2, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr);
  ::umask(old_umask);
  ASSERT_TRUE(daemon.has_value()) << program.problem();

  std::string expected = std::to_string(program.daemon()) + "\n0022\n/\n";
  for (const char* name : {"HOME", "OLDPWD", "PATH", "VERBENA_TEST_OUT"}) {
    if (std::string_view(name) != "OLDPWD" && std::getenv(name) != nullptr) {
      expected += std::string(name) + "\n";
    }
  }
  EXPECT_EQ(program.output(), expected);
  const std::string proc = "/proc/" + std::to_string(program.daemon());
  const auto inherited_files = [&] {  // returns the daemon's open files except /dev/null
    std::string names;
    for (int fd = 0; fd < 256; ++fd) {
      const std::string link = proc + "/fd/" + std::to_string(fd);
      std::array<char, 128> target{};
      if (::readlink(link.c_str(), target.data(), target.size() - 1) < 0) continue;
      if (std::string_view(target.data()) != "/dev/null") names += std::string(target.data()) + " ";
    }
    return names;
  };
  // The shell has closed its own descriptors before it stops itself.
  const Time deadline = now() + seconds(20);
  while (program.status("State") != "T (stopped)" && now() < deadline) ::sched_yield();
  EXPECT_EQ(inherited_files(), "");
  EXPECT_EQ(program.status("SigBlk"), "0000000000000000");
  EXPECT_EQ(program.status("SigIgn"), "0000000000000000");
  EXPECT_NE(::getsid(program.daemon()), ::getsid(0));
  EXPECT_NE(::getsid(program.daemon()), program.daemon());  // so it can never get a terminal
}

TEST(Daemon, ReportsWhyItDidNotStart) {
  Program program;
  EXPECT_EQ(program.start("printf 'port taken' >&3").error().code, Errc::kUnreachable);
  EXPECT_EQ(program.problem(), "port taken");
  EXPECT_EQ(program.start("exit 0").error().code, Errc::kUnreachable);
  EXPECT_EQ(program.problem(), "it ended before it was ready");
  std::string problem;
  EXPECT_EQ(start_daemon({.path = "/nowhere/verbenad", .args = {"verbenad"}}, problem).error().code,
            Errc::kUnreachable);
  EXPECT_EQ(problem, "cannot execute the program: errno 2");
  program.expect_no_signal_and_no_child();
}

TEST(Daemon, StartTimesOutAtTheDeadline) {
  Program program;
  const Time before = now();
  EXPECT_EQ(
      program.start("echo $$ > $VERBENA_TEST_OUT; exec sleep 1000", before + milliseconds(300))
          .error()
          .code,
      Errc::kTimedOut);
  EXPECT_GE(now() - before, milliseconds(300));
  program.expect_no_signal_and_no_child();
}

TEST(Daemon, TheReasonOfAnEarlierFailureIsNotReportedAgain) {
  EXPECT_EQ(run_in_child([] {
              Program program;
              EXPECT_FALSE(program.start("printf 'port taken' >&3").has_value());
              const rlimit no_descriptors{};
              ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &no_descriptors), 0);
              EXPECT_EQ(program.start("exit 0").error().code, Errc::kSystem);
              EXPECT_EQ(program.problem(), "");
            }),
            0);
}

TEST(Daemon, StartsFromAProgramThatClosedItsStdio) {
  EXPECT_EQ(run_in_child([] {
              bool started = false;
              {
                Program program;
                for (int fd = 0; fd <= 2; ++fd) ::close(fd);
                started = program.start(kSleepingDaemon).has_value();
              }
              ::_exit(started && ::fcntl(0, F_GETFD) == -1 ? 0 : 1);
            }),
            0);
}

TEST(Daemon, DoesNotInheritResourceLimits) {
  EXPECT_EQ(run_in_child([] {
              for (const auto resource : {RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_CORE}) {
                rlimit limit{};
                ::getrlimit(resource, &limit);
                limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 200);
                ::setrlimit(resource, &limit);
              }
              bool ok = false;
              {
                Program program;
                ok = program.start(kSleepingDaemon).has_value();
                const auto is_reset = [&](auto resource) {
                  rlimit limit{};
                  ::prlimit(program.daemon(), resource, nullptr, &limit);
                  return resource == RLIMIT_CORE ? limit.rlim_cur == 0
                                                 : limit.rlim_cur == limit.rlim_max;
                };
                for (const auto resource : {RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_CORE}) {
                  ok = ok && is_reset(resource);
                }
              }
              ::_exit(ok ? 0 : 1);
            }),
            0);
}

TEST(Daemon, HasNoSupplementaryGroupsOfRootAfterSeteuid) {
  constexpr uid_t kOtherUser = 1000;
  constexpr int kNotRoot = 77;
  const int status = run_in_child([] {
    const gid_t group = 7;
    if (::setgroups(1, &group) != 0 || ::seteuid(kOtherUser) != 0) ::_exit(kNotRoot);
    Program program;
    ASSERT_TRUE(program.start(kSleepingDaemon).has_value()) << program.problem();
    EXPECT_EQ(program.status("Uid"), "1000\t1000\t1000\t1000");
    const std::string groups = program.status("Groups");
    EXPECT_EQ(groups.find_first_not_of(' '), std::string::npos) << groups;
  });
  if (status == kNotRoot) GTEST_SKIP() << "only root can start a program for another user";
  EXPECT_EQ(status, 0);
}

TEST(Daemon, ReportsThroughItsEndOfThePipe) {
  for (const bool ready : {true, false}) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const Fd read_end(ends[0]);
    if (ready) {
      report_ready(ends[1]);
    } else {
      report_failure(ends[1], "why");
    }
    std::array<std::byte, 8> text;
    EXPECT_EQ(read_some(read_end.get(), text).value(), ready ? 1u : 3u);
    EXPECT_EQ(text[0], ready ? std::byte{0} : std::byte{'w'});
    EXPECT_EQ(read_some(read_end.get(), text).value(), 0u);  // the report closed its end
  }
}

void expect_reaper_reaps_daemon(Program& program) {
  auto daemon = program.start(kSleepingDaemon);
  ASSERT_TRUE(daemon.has_value()) << program.problem();
  ASSERT_TRUE(daemon->reaper_pidfd);
  program.expect_no_signal_and_no_child();
  EXPECT_FALSE(collect_reaper(*daemon));

  const pid_t reaper = *pid_of_pidfd(daemon->reaper_pidfd.get());
  EXPECT_EQ(process_name(reaper), "verbena-reaper");
  EXPECT_EQ(program.status("PPid"), std::to_string(reaper));

  ::kill(program.daemon(), SIGKILL);
  EXPECT_EQ(*wait_for(daemon->reaper_pidfd.get(), POLLIN, now() + seconds(20)), POLLIN);
  program.expect_no_signal_and_no_child();
  EXPECT_NE(::kill(program.daemon(), 0), 0);  // the daemon was reaped
  EXPECT_TRUE(collect_reaper(*daemon));
  EXPECT_NE(::kill(reaper, 0), 0);
  EXPECT_FALSE(collect_reaper(*daemon));
}

TEST(Daemon, IsReapedByAReaperIfTheProgramIsASubreaper) {
  EXPECT_EQ(run_in_child([] {
              ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
              Program program;
              expect_reaper_reaps_daemon(program);
            }),
            0);
}

TEST(Daemon, FailedStartLeavesNoReaper) {
  EXPECT_EQ(run_in_child([] {
              ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
              Program program;
              EXPECT_FALSE(program.start("printf 'no' >&3").has_value());
              EXPECT_EQ(program.problem(), "no");
              program.expect_no_signal_and_no_child();
              EXPECT_EQ(::waitpid(-1, nullptr, __WALL | WNOHANG), -1);
            }),
            0);
}

// Runs the program as process 1 of a namespace with its own /proc.
TEST(Daemon, IsReapedByAReaperIfTheProgramIsProcessOne) {
  constexpr int kNotAllowed = 77;
  const int status = run_in_child([] {
    if (!enter_namespaces(CLONE_NEWPID | CLONE_NEWNS)) ::_exit(kNotAllowed);
    ::_exit(run_in_child([] {
      if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("proc", "/proc", "proc", 0, nullptr) != 0) {
        ::_exit(kNotAllowed);
      }
      ASSERT_EQ(::getpid(), 1);
      Program program;
      expect_reaper_reaps_daemon(program);
    }));
  });
  if (status == kNotAllowed) GTEST_SKIP() << "no PID namespaces on this machine";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace verbena::os
