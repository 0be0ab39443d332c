#include "os/event_fd.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "os/system_call.h"

namespace verbena::os {
namespace {

void add_one(int fd) {
  const std::uint64_t one = 1;
  // No number of posts brings the count to its limit, 2^64 - 2, but another holder of the
  // descriptor can set it to that limit.  Then the write fails with EAGAIN, or waits if O_NONBLOCK
  // is not set.
  repeat_call(SYS_write, fd, &one, sizeof(one));
}

bool is_readable(int fd) {
  const auto events = wait_for(fd, POLLIN, Time{});
  return events.has_value() && (*events & POLLIN) != 0;
}

// Reads without waiting.  RWF_NOWAIT affects only this call.  O_NONBLOCK is a flag that belongs to
// the program, so this function does not set it.
long try_read_event(int fd) {
  std::uint64_t value = 0;
  iovec vector{.iov_base = &value, .iov_len = sizeof(value)};
  constexpr long kCurrentPosition = -1;
  return repeat_call(SYS_preadv2, fd, &vector, 1ul, kCurrentPosition, kCurrentPosition, RWF_NOWAIT);
}

}  // namespace

Result<EventFd> EventFd::create() {
  return EventFd(VB_TRY(take_fd(::eventfd(0, EFD_CLOEXEC), "cannot make an eventfd")));
}

void EventFd::post() { add_one(fd_.get()); }

EventFd::EventFd(Fd fd)
    : fd_(std::move(fd)), never_waits_(try_read_event(fd_.get()) < 0 && errno == EAGAIN) {}

bool EventFd::try_take() {
  if (never_waits_) return try_read_event(fd_.get()) >= 0;
  std::uint64_t value = 0;
  return is_readable(fd_.get()) && repeat_call(SYS_read, fd_.get(), &value, sizeof(value)) >= 0;
}

int EventFd::take_blocking() {
  std::uint64_t value = 0;
  return ::read(fd_.get(), &value, sizeof(value)) == static_cast<ssize_t>(sizeof(value)) ? 0
                                                                                         : errno;
}

Result<WakeFd> WakeFd::create() {
  return WakeFd(
      VB_TRY(take_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "cannot make an eventfd")));
}

void WakeFd::wake() { add_one(fd_.get()); }

void WakeFd::clear() {
  std::uint64_t value = 0;
  repeat_call(SYS_read, fd_.get(), &value, sizeof(value));
}

Result<std::pair<WakeSocket, WakeSocket>> WakeSocket::create_pair() {
  std::array<int, 2> ends{-1, -1};
  // Uses datagram sockets, because other sockets remain readable after their peer has closed.
  if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return system_error(errno, "cannot make a socket pair");
  }
  auto first = take_fd(ends[0], "cannot make a socket pair");
  auto second = take_fd(ends[1], "cannot make a socket pair");
  return std::pair(WakeSocket(VB_TRY(std::move(first))), WakeSocket(VB_TRY(std::move(second))));
}

Result<WakeSocket> WakeSocket::adopt(Fd fd) {
  int domain = 0, type = 0;
  socklen_t size = sizeof(int);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
      ::getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &type, &size) != 0 || domain != AF_UNIX ||
      type != SOCK_DGRAM) {
    return fail(Errc::kMalformed, "the descriptor is not a wake-up socket");
  }
  return WakeSocket(std::move(fd));
}

void WakeSocket::wake() {
  const std::byte one{1};
  // The call fails when unread datagrams fill the queue.  The other end is readable then, and only
  // that matters.
  repeat_call(SYS_sendto, fd_.get(), &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
}

void WakeSocket::clear() {
  constexpr int kDatagramsMax = 1024;  // more than the queue can contain by default
  for (int i = 0; i < kDatagramsMax; ++i) {
    std::byte any;
    if (repeat_call(SYS_recvfrom, fd_.get(), &any, sizeof(any), MSG_DONTWAIT, nullptr, nullptr) <
        0) {
      return;
    }
  }
}

Result<TimerFd> TimerFd::create() {
  return TimerFd(VB_TRY(take_fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                                "cannot make a timerfd")));
}

void TimerFd::set(Time time) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t at = std::max<std::int64_t>(1, time.time_since_epoch().count());
  const itimerspec once{.it_interval = {}, .it_value = {at / kSecond, at % kSecond}};
  ::timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &once, nullptr);
}

void TimerFd::clear() {
  std::uint64_t expirations = 0;
  repeat_call(SYS_read, fd_.get(), &expirations, sizeof(expirations));
}

}  // namespace verbena::os
