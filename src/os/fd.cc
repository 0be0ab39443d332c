#include "os/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <ctime>

#include "os/clock.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

constexpr int kFirstFd = 3;

}  // namespace

void Fd::reset() {
  // The call is not repeated after EINTR, because the kernel has closed the descriptor anyway.  By
  // now, another thread may have got the same number.
  if (fd_ >= 0) system_call(SYS_close, std::exchange(fd_, -1));
}

Result<Fd> Fd::duplicate() const { return duplicate_fd(fd_); }

Result<Fd> duplicate_fd(int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, kFirstFd);
  if (copy < 0) return system_error(errno, "cannot duplicate a descriptor");
  return Fd(copy);
}

bool would_block(const Error& error) {
  return error.code == Errc::kSystem && error.detail == EAGAIN;
}

Result<Fd> take_fd(int result, const char* context) {
  if (result < 0) return system_error(errno, context);
  if (result >= kFirstFd) return Fd(result);
  const Fd low_fd(result);
  return low_fd.duplicate();
}

// Returns true for a closed descriptor, so that the caller waits on it and gets the error.
bool is_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags < 0 || (flags & O_NONBLOCK) == 0;
}

Result<void> set_nonblocking(int fd, bool nonblocking) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return system_error(errno, "cannot read the flags of a descriptor");
  const int new_flags = nonblocking ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (new_flags != flags && ::fcntl(fd, F_SETFL, new_flags) != 0) {
    return system_error(errno, "cannot set the flags of a descriptor");
  }
  return {};
}

Result<std::size_t> read_some(int fd, std::span<std::byte> out) {
  const long n = repeat_call(SYS_read, fd, out.data(), out.size());
  if (n < 0) return system_error(errno, "read");
  return static_cast<std::size_t>(n);
}

Result<std::size_t> write_some(int fd, std::span<const std::byte> bytes) {
  const long n = repeat_call(SYS_write, fd, bytes.data(), bytes.size());
  if (n < 0) return system_error(errno, "write");
  return static_cast<std::size_t>(n);
}

Result<void> write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) bytes = bytes.subspan(VB_TRY(write_some(fd, bytes)));
  return {};
}

bool try_write(int fd, std::string_view text) {
  const auto ready = wait_for(fd, POLLOUT, Time{});
  if (!ready || (*ready & POLLOUT) == 0 || (*ready & (POLLERR | POLLHUP)) != 0) return false;
  // The reader of a pipe may close it between the poll and the write, so SIGPIPE is blocked.
  sigset_t pipe_signal;
  sigset_t old_mask;
  sigset_t pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &old_mask);
  const auto written = write_some(fd, std::as_bytes(std::span(text)));
  if (!written && written.error().detail == EPIPE && !was_pending) {
    constexpr timespec kNow{.tv_sec = 0, .tv_nsec = 0};
    repeat_call(SYS_rt_sigtimedwait, &pipe_signal, nullptr, &kNow, std::size_t{8});
  }
  pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  return written && *written == text.size();
}

Result<short> wait_for(int fd, short events, Time deadline) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  for (;;) {
    const std::int64_t remaining = deadline == kNever ? 0 : (deadline - now()).count();
    timespec timeout{.tv_sec = 0, .tv_nsec = 0};
    if (remaining > 0) timeout = {.tv_sec = remaining / kSecond, .tv_nsec = remaining % kSecond};
    pollfd poll{.fd = fd, .events = events, .revents = 0};
    const long n = system_call(SYS_ppoll, &poll, 1, deadline == kNever ? nullptr : &timeout,
                               nullptr, std::size_t{0});
    if (n > 0) return poll.revents;
    if (n == 0) return short{0};
    if (errno != EINTR) return system_error(errno, "ppoll");
  }
}

}  // namespace verbena::os
