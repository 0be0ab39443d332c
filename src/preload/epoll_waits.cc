#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "os/clock.h"
#include "preload/epoll_sets.h"
#include "preload/export.h"
#include "preload/next.h"
#include "preload/processor.h"

// Defines the functions that wait for epoll sets.
namespace verbena::preload::epolls {
namespace {

// Returns the events of output that hold now, of those that the entry asks for.  The kernel reports
// them beside input in the same event.
std::uint32_t output_of(const Entry& entry) {
  const std::uint32_t wanted = entry.events & (EPOLLOUT | EPOLLWRNORM);
  if (wanted == 0) return 0;
  const auto socket = SocketTable::find(entry.fd);
  if (socket && socket->is_switched() && socket->sender().writable()) return wanted;
  pollfd one{.fd = entry.fd, .events = POLLOUT | POLLWRNORM, .revents = 0};
  const timespec at_once{};
  next().ppoll(&one, 1, &at_once, nullptr);
  return wanted & static_cast<std::uint32_t>(one.revents);
}

class Wait {
 public:
  Wait(int fd, Set& set, epoll_event* events, int room)
      : fd_(fd), set_(set), events_(events), room_(room) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait() { leave_all(); }

  // `sleep(elapsed)` makes the kernel's call with what is left of the time.
  template <class Sleep>
  int run(bool at_once, const sigset_t* mask, Sleep sleep) {
    const Time began = at_once ? Time{} : os::now();
    Duration elapsed{};
    for (;; elapsed = at_once ? Duration{} : os::now() - began) {
      if (const int found = scan(); found > 0) return add_from_kernel(found, mask);
      if (!at_once && has_switched_) {
        const int found = spin(mask);
        if (found != 0) return found;
      }
      if (!at_once && !enter_all()) continue;
      const processor::Sleep slept;
      const int found = sleep(elapsed);
      const int error = errno;
      if (!at_once) slept.ended(found > 0);
      const int taken = found > 0 ? take(0, found) : found;
      leave_all();
      errno = error;
      if (found <= 0 || taken > 0 || (at_once && !kicked_)) return taken;
      kicked_ = false;
    }
  }

 private:
  // Reports the rings that have bytes.
  int scan() {
    const Hold hold(set_);
    int found = 0;
    has_switched_ = false;
    for (std::uint32_t i = 0; i < set_.count; ++i) {
      Entry& entry = set_.entries[i];
      if (!entry.wants_input()) continue;
      if (!SocketTable::has(entry.fd)) {
        if (set_at(entry.fd) == nullptr) continue;
        has_switched_ = true;
        if (!is_ready(entry)) continue;
      } else {
        const auto socket = SocketTable::find(entry.fd);
        if (!socket || !socket->is_switched()) continue;
        has_switched_ = true;
        std::uint64_t seen = 0;
        if (!is_ready_beyond(*socket, entry, seen)) continue;
        if (found < room_) entry.seen = seen;
      }
      if (found == room_) break;
      if (entry.is_one_shot()) entry.is_armed = false;
      std::uint32_t reported = entry.events & kInput;
      if ((entry.events & EPOLLET) != 0) reported |= output_of(entry);
      events_[found++] = {.events = reported, .data = entry.data};
    }
    return found;
  }

  // Adds the output that the kernel has no room to report.
  void add_output(int found) {
    const Hold hold(set_);
    for (int i = 0; i < found; ++i) {
      if (const Entry* entry = entry_of(set_, events_[i].data)) {
        events_[i].events |= output_of(*entry);
      }
    }
  }

  // Takes `count` events of the kernel that stand behind `found` ones.  Returns how many there are
  // in all then.
  int take(int found, int count) {
    int end = found;
    {
      const Hold hold(set_);
      for (int i = found; i < found + count; ++i) end = take_one(found, end, events_[i]);
    }
    // This thread was woken for others as well, if it does not report what it was woken for.
    if (kicked_ && end > 0 && has_ready(set_)) kick(fd_);
    return end;
  }
  int take_one(int found, int end, epoll_event event) {
    if (event.data.u64 == kick_data()) {
      kicked_ = true;
      return end;
    }
    epoll_event* const same = std::find_if(events_, events_ + found, [&](const epoll_event& e) {
      return e.data.u64 == event.data.u64;
    });
    if (same != events_ + found) {
      same->events |= event.events;
      return end;
    }
    if (set_.one_shots > 0) {
      Entry* entry = entry_of(set_, event.data);
      if (entry != nullptr && entry->is_one_shot()) {
        // The ring's bytes were reported before.  The kernel says it again when it is armed again.
        if (!entry->is_armed) return end;
        entry->is_armed = false;
      }
    }
    events_[end] = event;
    return end + 1;
  }

  // Adds what the kernel has to what the rings have.
  int add_from_kernel(int found, const sigset_t* mask) {
    if (found == room_) {
      add_output(found);
      return found;
    }
    const int more = next().epoll_pwait(fd_, events_ + found, room_ - found, 0, mask);
    return more > 0 ? take(found, more) : found;
  }

  // Returns what it found, or 0.
  int spin(const sigset_t* mask) {
    int found = 0;
    int from_kernel = 0;
    const auto has_bytes = [&] {
      found = scan();
      return found > 0;
    };
    const auto kernel_has_news = [&] {
      from_kernel = next().epoll_pwait(fd_, events_, room_, 0, mask);
      return from_kernel != 0;
    };
    processor::spin(has_bytes, kernel_has_news);
    if (found > 0) return add_from_kernel(found, mask);
    return from_kernel > 0 ? take(0, from_kernel) : from_kernel;
  }

  bool enter_all() {
    entered_ = epolls::enter(set_, false);
    return entered_;
  }
  void leave_all() {
    if (std::exchange(entered_, false)) epolls::leave(set_);
  }

  int fd_;
  Set& set_;
  epoll_event* events_;
  int room_;
  bool has_switched_ = false;
  bool entered_ = false;
  bool kicked_ = false;  // the kernel has reported kick()
};

template <class Sleep>
int wait(int fd, epoll_event* events, int room, bool at_once, const sigset_t* mask, Sleep sleep) {
  Set* set = set_at(fd);
  if (set == nullptr || events == nullptr || room <= 0) return sleep(Duration{});
  return Wait(fd, *set, events, room).run(at_once, mask, sleep);
}

// Returns what is left of a number of milliseconds; a negative one is no limit.
int left_of(int timeout, Duration elapsed) {
  if (timeout <= 0) return timeout;
  const auto gone = std::chrono::floor<std::chrono::milliseconds>(elapsed).count();
  return static_cast<int>(std::max<std::int64_t>(timeout - gone, 0));
}
timespec left_of(const timespec& timeout, Duration elapsed) {
  const std::chrono::nanoseconds all =
      std::chrono::seconds(timeout.tv_sec) + std::chrono::nanoseconds(timeout.tv_nsec);
  const std::chrono::nanoseconds left = std::max(all - elapsed, std::chrono::nanoseconds(0));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  return {.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
}

}  // namespace
}  // namespace verbena::preload::epolls

using verbena::Duration;
using verbena::preload::next;
namespace epolls = verbena::preload::epolls;

VB_EXPORT int epoll_wait(int fd, epoll_event* events, int room, int timeout) {
  return epolls::wait(fd, events, room, timeout == 0, nullptr, [&](Duration elapsed) {
    return next().epoll_wait(fd, events, room, epolls::left_of(timeout, elapsed));
  });
}
VB_EXPORT int epoll_pwait(int fd, epoll_event* events, int room, int timeout,
                          const sigset_t* mask) {
  return epolls::wait(fd, events, room, timeout == 0, mask, [&](Duration elapsed) {
    return next().epoll_pwait(fd, events, room, epolls::left_of(timeout, elapsed), mask);
  });
}
VB_EXPORT int epoll_pwait2(int fd, epoll_event* events, int room, const timespec* timeout,
                           const sigset_t* mask) {
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
  return epolls::wait(fd, events, room, at_once, mask, [&](Duration elapsed) {
    if (timeout == nullptr) return next().epoll_pwait2(fd, events, room, nullptr, mask);
    const timespec left = epolls::left_of(*timeout, elapsed);
    return next().epoll_pwait2(fd, events, room, &left, mask);
  });
}
