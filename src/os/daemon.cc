#include "os/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "os/clock.h"
#include "os/limits.h"
#include "os/system_call.h"

// Waits below use __WALL, because an ordinary wait does not see a child without an exit signal.
namespace verbena::os {
namespace {

constexpr char kReadyByte = 0;  // anything else is the beginning of an error text
constexpr int kSignals = 64;
constexpr std::size_t kSignalSetBytes = kSignals / 8;
constexpr std::uint64_t kAllSignals = ~std::uint64_t{0};

// Contains everything that the children need.  The program prepares it before the clone.  The
// children may only make system calls, because another thread of the program may have locked any
// lock at the time of the clone.
struct Plan {
  const char* path;
  char* const* argv;
  char* const* environment;
  int ready_fd;
  bool needs_reaper;
};

// Calls the kernel directly, because the C library's wrapper leaves two of its own signals
// unblocked.
std::uint64_t set_signal_mask(std::uint64_t mask) {
  std::uint64_t before = 0;
  system_call(SYS_rt_sigprocmask, SIG_SETMASK, &mask, &before, kSignalSetBytes);
  return before;
}

// Copies this process as fork() does, but runs no fork handlers and causes no SIGCHLD.
long clone_process(std::uint64_t flags, int* pidfd) {
#if defined(__s390x__)
#error "clone() takes its arguments in another order here"
#endif
  return system_call(SYS_clone, flags, nullptr, pidfd, nullptr, nullptr);
}

// ---- in the children: system calls only ---------------------------------------------------------

[[noreturn]] void child_exit(int status) {
  for (;;) system_call(SYS_exit_group, status);
}

[[noreturn]] void child_fail(int ready_fd, const char* what, int error_number) {
  std::array<char, 160> text{};
  std::size_t size = 0;
  for (; what[size] != 0 && size < text.size() - 16; ++size) text[size] = what[size];
  std::array<char, 8> digits{};
  std::size_t count = 0;
  for (; error_number > 0 && count < digits.size(); error_number /= 10) {
    digits[count++] = static_cast<char>('0' + error_number % 10);
  }
  while (count > 0) text[size++] = digits[--count];
  repeat_call(SYS_write, ready_fd, text.data(), size);
  child_exit(127);
}

void reset_signals() {
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    std::uint64_t mask;
  } const default_action{SIG_DFL, 0, nullptr, 0};
  for (int signal = 1; signal <= kSignals; ++signal) {
    system_call(SYS_rt_sigaction, signal, &default_action, nullptr, kSignalSetBytes);
  }
}

void close_from(unsigned first) {
  if (system_call(SYS_close_range, first, ~0u, 0u) == 0) return;
  rlimit limit{};
  system_call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit);
  constexpr rlim_t kDescriptorsMax = 1 << 16;
  const auto end =
      static_cast<unsigned>(limit.rlim_cur < kDescriptorsMax ? limit.rlim_cur : kDescriptorsMax);
  for (unsigned fd = first; fd < end; ++fd) system_call(SYS_close, fd);
}

// Puts /dev/null on descriptors 0 to 2 and the pipe on kReadyFd, and closes all others.
// REQUIRES: ready_fd >= 3.
void set_descriptors(int ready_fd) {
  long null_fd = system_call(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
  if (null_fd < 0) null_fd = system_call(SYS_memfd_create, "null", 0u);  // there is no /dev
  for (int fd = 0; fd <= 2; ++fd) {
    if (null_fd != fd) system_call(SYS_dup3, static_cast<int>(null_fd), fd, 0);
  }
  if (ready_fd != kReadyFd) system_call(SYS_dup3, ready_fd, kReadyFd, 0);
  if (ready_fd == kReadyFd) system_call(SYS_fcntl, kReadyFd, F_SETFD, 0);
  close_from(kReadyFd + 1);
}

// Makes the daemon belong only to the effective user.  If a setuid program's daemon had the real
// user id, the user who runs the program could stop the daemon.  If a setgid program's daemon had
// that group, it would use the group's rights for all programs of the user.
void drop_real_ids() {
  const long real = system_call(SYS_getuid);
  const long user = system_call(SYS_geteuid);
  const long real_group = system_call(SYS_getgid);
  const long group = user == real ? real_group : user == 0 ? 0 : system_call(SYS_getegid);
  if (user != real) {
    // After root's seteuid() to another user, only user 0 may call setgroups().  If this process
    // may not become user 0 or call setgroups(), the daemon retains the supplementary groups.
    system_call(SYS_setresuid, -1, 0, -1);
    system_call(SYS_setgroups, 0, nullptr);
  }
  system_call(SYS_setresgid, group, group, group);
  system_call(SYS_setresuid, user, user, user);
}

// Resets the scheduling that the program may have set for itself, because the daemon serves other
// programs as well.
void reset_scheduling() {
  const sched_param normal{};
  system_call(SYS_sched_setscheduler, 0, SCHED_OTHER, &normal);
  std::array<std::uint64_t, 128> all_cpus;
  all_cpus.fill(~std::uint64_t{0});
  system_call(SYS_sched_setaffinity, 0, sizeof(all_cpus), all_cpus.data());
}

[[noreturn]] void run_reaper(long daemon) {
  close_from(0);
  // As process 1 of a namespace the reaper inherits every orphan, so it reaps all of them.
  for (;;) {
    siginfo_t info{};
    if (repeat_call(SYS_waitid, P_ALL, 0, &info, WEXITED | __WALL, nullptr) < 0) break;
    if (info.si_pid == daemon) break;
  }
  child_exit(0);
}

[[noreturn]] void run_helper(const Plan& plan) {
  system_call(SYS_setsid);
  reset_signals();
  set_descriptors(plan.ready_fd);
  reset_scheduling();
  set_daemon_limits();  // before drop_real_ids() drops the right to raise limits
  drop_real_ids();
  system_call(SYS_umask, 022);
  if (system_call(SYS_chdir, "/") != 0)
    child_fail(kReadyFd, "cannot change to directory /: errno ", errno);
  // The name is set before the clone, so that the reaper has it when the daemon reports that it is
  // ready.  The daemon inherits the name, but exec replaces it.
  if (plan.needs_reaper) system_call(SYS_prctl, PR_SET_NAME, "verbena-reaper", 0, 0, 0);
  const long pid = clone_process(SIGCHLD, nullptr);
  if (pid < 0) child_fail(kReadyFd, "cannot make a process: errno ", errno);
  if (pid > 0 && plan.needs_reaper) run_reaper(pid);
  if (pid > 0) child_exit(0);
  set_signal_mask(0);
  system_call(SYS_execve, plan.path, plan.argv, plan.environment);
  child_fail(kReadyFd, "cannot execute the program: errno ", errno);
}

// ---- in the program -----------------------------------------------------------------------------

// Returns true if an orphan of this process would become a child of this process, or would run in a
// PID namespace whose process 1 is our helper.
bool would_inherit_orphans() {
  int subreaper = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  if (subreaper != 0 || ::getpid() == 1) return true;
  struct stat own {};
  struct stat for_children {};
  return ::stat("/proc/self/ns/pid", &own) == 0 &&
         ::stat("/proc/self/ns/pid_for_children", &for_children) == 0 &&
         own.st_ino != for_children.st_ino;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Selects the variables that the daemon gets.  A user with fewer rights wrote the environment of a
// privileged program, so the daemon of such a program gets no variable.
std::vector<std::string> daemon_environment() {
  std::vector<std::string> variables;
  if (::getauxval(AT_SECURE) != 0) return variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("PATH=") || text.starts_with("HOME=") || text.starts_with("VERBENA_")) {
      variables.emplace_back(text);
    }
  }
  return variables;
}

// Starts the helper, and reaps it at once unless it remains as the reaper.
Result<Daemon> start_helper(const Plan& plan) {
  int raw_pidfd = -1;
  const std::uint64_t mask = set_signal_mask(kAllSignals);
  const long pid = clone_process(CLONE_PIDFD, &raw_pidfd);
  if (pid == 0) run_helper(plan);
  const int error_number = errno;
  set_signal_mask(mask);
  if (pid < 0) return system_error(error_number, "cannot make a process");
  Fd pidfd = VB_TRY(take_fd(raw_pidfd, "clone"));
  Daemon daemon;
  if (plan.needs_reaper) {
    daemon.reaper_pidfd = std::move(pidfd);
  } else {
    siginfo_t info{};
    repeat_call(SYS_waitid, P_PID, pid, &info, WEXITED | __WALL, nullptr);
  }
  return daemon;
}

// Reads the daemon's report from the pipe: kReadyByte means success, and any other text tells why
// the daemon failed.  REQUIRES: `problem` is empty.
Result<void> await_report(int fd, Time deadline, std::string& problem) {
  for (;;) {
    if (VB_TRY(wait_for(fd, POLLIN, deadline)) == 0) {
      return fail(Errc::kTimedOut, "the daemon does not report in time");
    }
    std::array<char, 256> text;
    const std::size_t n = VB_TRY(read_some(fd, std::as_writable_bytes(std::span(text))));
    if (n > 0 && problem.empty() && text[0] == kReadyByte) return {};
    problem.append(text.data(), n);
    if (n == 0 || problem.size() > 4096) break;
  }
  if (problem.empty()) problem = "it ended before it was ready";
  return fail(Errc::kUnreachable, "the daemon did not start");
}

}  // namespace

Result<Daemon> start_daemon(const DaemonOptions& options, std::string& problem) {
  problem.clear();
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error(errno, "cannot make a pipe");
  auto read_result = take_fd(ends[0], "cannot make a pipe");
  auto write_result = take_fd(ends[1], "cannot make a pipe");
  const Fd read_end = VB_TRY(std::move(read_result));
  Fd write_end = VB_TRY(std::move(write_result));

  std::vector<std::string> arguments = options.args;
  std::vector<std::string> environment = daemon_environment();
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(environment);
  Daemon daemon = VB_TRY(start_helper({.path = options.path.c_str(),
                                       .argv = argv.data(),
                                       .environment = envp.data(),
                                       .ready_fd = write_end.get(),
                                       .needs_reaper = would_inherit_orphans()}));
  write_end.reset();
  auto report = await_report(read_end.get(), options.deadline, problem);
  if (report.has_value()) return daemon;
  if (daemon.reaper_pidfd && report.error().code == Errc::kUnreachable) {
    // The daemon has closed its end of the pipe, so the reaper is about to exit.
    (void)wait_for(daemon.reaper_pidfd.get(), POLLIN, now() + std::chrono::seconds(1));
    collect_reaper(daemon);
  }
  return std::unexpected(report.error());
}

bool collect_reaper(Daemon& daemon) {
  siginfo_t info{};
  const long result = repeat_call(SYS_waitid, P_PIDFD, daemon.reaper_pidfd.get(), &info,
                                  WEXITED | WNOHANG | __WALL, nullptr);
  if (result != 0 || info.si_pid == 0) return false;
  daemon.reaper_pidfd.reset();
  return true;
}

void report_ready(int ready_fd) {
  const Fd fd(ready_fd);
  repeat_call(SYS_write, ready_fd, &kReadyByte, sizeof(kReadyByte));
}

void report_failure(int ready_fd, std::string_view text) {
  const Fd fd(ready_fd);
  repeat_call(SYS_write, ready_fd, text.data(), text.size());
}

}  // namespace verbena::os
