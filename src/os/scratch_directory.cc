#include "os/scratch_directory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

namespace verbena::os {
namespace {

[[noreturn]] void run_keeper(const std::string& path, int read_end) {
  ::prctl(PR_SET_NAME, "verbena-keeper");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // Closes the keeper's copies of other descriptors, which would keep sockets and socket names of
  // the process in use.
  if (read_end != 0) ::dup3(read_end, 0, 0);
  ::closefrom(1);
  std::array<std::byte, 1> buffer{};
  while (true) {
    const ssize_t bytes = ::read(0, buffer.data(), buffer.size());
    if (bytes == 0 || (bytes < 0 && errno != EINTR)) break;
  }
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  ::_exit(0);
}

}  // namespace

Result<ScratchDirectory> ScratchDirectory::create(const std::string& parent,
                                                  const std::string& prefix) {
  std::string path = parent + "/" + prefix + "XXXXXX";
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error(errno, "cannot make a pipe");
  auto read_result = take_fd(ends[0], "cannot make a pipe");
  auto write_result = take_fd(ends[1], "cannot make a pipe");
  const Fd read_end = VB_TRY(std::move(read_result));
  Fd write_end = VB_TRY(std::move(write_result));
  if (::mkdtemp(path.data()) == nullptr) return system_error(errno, "cannot make a directory");
  const pid_t keeper = ::fork();
  if (keeper == 0) run_keeper(path, read_end.get());
  if (keeper < 0) {
    const int error = errno;
    ::rmdir(path.c_str());
    return system_error(error, "cannot make a process");
  }
  return ScratchDirectory(std::move(path), std::move(write_end), keeper);
}

ScratchDirectory::ScratchDirectory(ScratchDirectory&& other) noexcept
    : path_(std::move(other.path_)),
      pipe_write_end_(std::move(other.pipe_write_end_)),
      keeper_(std::exchange(other.keeper_, 0)) {}

ScratchDirectory::~ScratchDirectory() {
  if (keeper_ == 0) return;
  pipe_write_end_.reset();
  while (::waitpid(keeper_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace verbena::os
