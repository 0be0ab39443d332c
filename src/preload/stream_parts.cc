#include "preload/stream_parts.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <cerrno>

#include "os/system_call.h"
#include "preload/leaving.h"
#include "preload/next.h"

namespace verbena::preload::stream_calls {

bool may_block(int fd, const Socket& socket, int flags) {
  if ((flags & MSG_DONTWAIT) != 0 || socket.nonblocking.load(std::memory_order_relaxed)) {
    return false;
  }
  // Another process that has the socket may have changed O_NONBLOCK.
  return !socket.is_shared.load(std::memory_order_relaxed) ||
         (os::system_call(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK) == 0;
}

std::optional<timespec> timeout_of(int fd, int timeout_option) {
  timeval limit{};
  socklen_t bytes = sizeof(limit);
  next().getsockopt(fd, SOL_SOCKET, timeout_option, &limit, &bytes);
  if (limit.tv_sec == 0 && limit.tv_usec == 0) return std::nullopt;
  return timespec{.tv_sec = limit.tv_sec, .tv_nsec = limit.tv_usec * 1000};
}

bool wait_in_kernel(int fd, short events, int timeout_option) {
  const auto timeout = timeout_of(fd, timeout_option);
  pollfd one{.fd = fd, .events = events, .revents = 0};
  const int ready = next().ppoll(&one, 1, timeout ? &*timeout : nullptr, nullptr);
  if (ready == 0) errno = EAGAIN;
  return ready > 0;
}

bool has_error(int fd) {
  pollfd one{.fd = fd, .events = 0, .revents = 0};
  const timespec at_once{};
  return next().ppoll(&one, 1, &at_once, nullptr) > 0 && (one.revents & POLLERR) != 0;
}

ssize_t reset(int fd) {
  leaving::reset(fd);
  errno = ECONNRESET;
  return -1;
}

ssize_t failed(int error) {
  errno = error;
  return -1;
}

}  // namespace verbena::preload::stream_calls
