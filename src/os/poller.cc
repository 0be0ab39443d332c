#include "os/poller.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ctime>

#include "os/clock.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kMillisecond = 1'000'000;

Result<void> control(int poller, int operation, int fd, std::uint64_t token, bool readable,
                     bool writable) {
  epoll_event event{};
  event.events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
  event.data.u64 = token;
  if (::epoll_ctl(poller, operation, fd, &event) != 0) return system_error(errno, "epoll_ctl");
  return {};
}

// Uses epoll_pwait2() (Linux 5.11).  Older kernels lack this call, and some seccomp filters and
// tools refuse it.  Then the function waits for whole milliseconds, rounded up, because a caller
// that wakes too early would spin.
long wait_until(int poller, epoll_event* events, int events_max, Time deadline,
                bool& lacks_pwait2) {
  const std::int64_t remaining =
      deadline == kNever ? 0 : std::max<std::int64_t>(0, (deadline - now()).count());
  timespec timeout{.tv_sec = remaining / kSecond, .tv_nsec = remaining % kSecond};
  if (!lacks_pwait2) {
    const long n = system_call(SYS_epoll_pwait2, poller, events, events_max,
                               deadline == kNever ? nullptr : &timeout, nullptr, std::size_t{0});
    if (n >= 0 || (errno != ENOSYS && errno != EPERM)) return n;
    lacks_pwait2 = true;
  }
  const std::int64_t ms =
      std::min<std::int64_t>((remaining + kMillisecond - 1) / kMillisecond, INT_MAX);
  return system_call(SYS_epoll_pwait, poller, events, events_max,
                     deadline == kNever ? -1 : static_cast<int>(ms), nullptr, std::size_t{0});
}

}  // namespace

Result<Poller> Poller::create() {
  return Poller(VB_TRY(take_fd(::epoll_create1(EPOLL_CLOEXEC), "cannot make an epoll descriptor")));
}

Result<void> Poller::add(int fd, std::uint64_t token, bool readable, bool writable) {
  return control(fd_.get(), EPOLL_CTL_ADD, fd, token, readable, writable);
}

Result<void> Poller::change(int fd, std::uint64_t token, bool readable, bool writable) {
  return control(fd_.get(), EPOLL_CTL_MOD, fd, token, readable, writable);
}

Result<void> Poller::remove(int fd) {
  return control(fd_.get(), EPOLL_CTL_DEL, fd, 0, false, false);
}

std::size_t Poller::wait(std::span<Ready> out, Time deadline) {
  std::array<epoll_event, 64> events;
  const auto events_max = static_cast<int>(std::min(out.size(), events.size()));
  const long n = wait_until(fd_.get(), events.data(), events_max, deadline, lacks_pwait2_);
  if (n <= 0) return 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::uint32_t event_mask = events[i].events;
    out[i] = {.token = events[i].data.u64,
              .readable = (event_mask & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0,
              .writable = (event_mask & EPOLLOUT) != 0};
  }
  return static_cast<std::size_t>(n);
}

}  // namespace verbena::os
