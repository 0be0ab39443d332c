#include "os/process.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "os/system_call.h"

namespace verbena::os {
namespace {

// Reads the first kilobytes of a file of /proc.  Returns an empty text if it cannot be read.
std::string read_small_file(const char* path) {
  auto fd = take_fd(static_cast<int>(repeat_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC)),
                    "open");
  if (!fd.has_value()) return {};
  std::array<char, 4096> text;
  const auto n = read_some(fd->get(), std::as_writable_bytes(std::span(text)));
  return n.has_value() ? std::string(text.data(), *n) : std::string();
}

template <class Number>
bool parse(std::string_view text, Number& out) {
  return std::from_chars(text.data(), text.data() + text.size(), out).ec == std::errc();
}

}  // namespace

Result<Fd> open_pidfd(pid_t pid) {
  const long fd = system_call(SYS_pidfd_open, pid, 0u);
  if (fd < 0 && (errno == ESRCH || errno == EINVAL)) {
    return fail(Errc::kAddressNotFound, "no such process");
  }
  return take_fd(static_cast<int>(fd), "pidfd_open");
}

Result<pid_t> pid_of_pidfd(int pidfd) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
  const std::string info = read_small_file(path);
  constexpr std::string_view kKey = "\nPid:\t";
  const std::size_t at = info.find(kKey);
  pid_t pid = 0;
  if (at == std::string::npos || !parse(std::string_view(info).substr(at + kKey.size()), pid) ||
      pid <= 0) {
    return fail(Errc::kMalformed, "not a descriptor of a living process");
  }
  return pid;
}

bool has_ended(int pidfd) {
  const auto events = wait_for(pidfd, POLLIN, Time{});
  return events.has_value() && (*events & POLLIN) != 0;
}

std::string process_name(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/comm", pid);
  std::string name = read_small_file(path);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

bool process_is_stopped(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const std::string stat = read_small_file(path);
  const std::size_t name_end = stat.rfind(')');  // "pid (name) state ..."
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return false;
  const char state = stat[name_end + 2];
  return state == 'T' || state == 't';
}

Result<std::uint64_t> process_start_time(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const std::string stat = read_small_file(path);
  // The text is "pid (name) state ...", where the name may contain spaces and brackets.  The start
  // time is field 22.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return fail(Errc::kAddressNotFound, "no such process");
  std::string_view rest = std::string_view(stat).substr(name_end);
  for (int field = 2; field < 22; ++field) {
    const std::size_t blank = rest.find(' ');
    if (blank == std::string_view::npos) return fail(Errc::kMalformed, "/proc/PID/stat");
    rest.remove_prefix(blank + 1);
  }
  std::uint64_t ticks = 0;
  if (!parse(rest, ticks)) return fail(Errc::kMalformed, "/proc/PID/stat");
  return ticks;
}

}  // namespace verbena::os
