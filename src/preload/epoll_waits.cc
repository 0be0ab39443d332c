#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

#include "os/clock.h"
#include "preload/epoll_sets.h"
#include "preload/export.h"
#include "preload/next.h"
#include "preload/processor.h"

// Defines the functions that wait for epoll sets.
namespace verbena::preload::epolls {
namespace {

// Returns the output events that the entry asks for and that hold now.  The kernel reports them
// together with input in the same event.
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

// Returns true if bytes have come into the entry's ring and were read before a wait has reported
// them, and if the entry asks for output and there is room.  As in the kernel, the edge of such
// bytes then reports output.  Otherwise the edge has no effect on later waits.
bool has_output_edge_else_drop(const stream::Receiver::Look& look, Entry& entry) {
  if ((entry.events & EPOLLET) == 0 || look.bytes > 0 || look.tail == entry.last_reported)
    return false;
  // The kernel makes the first report of an entry.
  const bool is_known = entry.last_reported != kNothingReported;
  if (is_known && output_of(entry) != 0) return true;
  entry.last_reported = look.tail;
  return false;
}

// Returns the input events that the entry asks for if its ring has bytes, even if these bytes were
// reported before.
std::uint32_t unread_input(Entry& entry) {
  const auto socket = SocketTable::find(entry.fd);
  if (!socket || !socket->is_switched() || !entry.wants_input()) return 0;
  const auto look = socket->receiver().look();
  if (look.bytes == 0) return 0;
  if ((entry.events & EPOLLET) != 0) entry.last_reported = look.tail;
  return entry.events & kInput;
}

// Collects the entries whose rings have bytes, in the order in which the kernel would report them:
// first the entry that has waited longest since its first unread byte was sent, or since its last
// report.  So a program that sends on two connections sees them served in turn, and each connection
// gets its turn even if a wait has room for few events.
class ReadyRings {
 public:
  struct Item {
    std::uint64_t since;  // when the entry began to wait, in processor::ticks()
    Entry* entry;
    std::uint64_t position;
    bool has_input;  // false: the bytes of an edge have been read, so only output is reported
  };

  // REQUIRES: the caller holds the set, and keeps it while it uses all().
  explicit ReadyRings(Set& set) {
    std::uint32_t place = set.next_look;
    for (std::uint32_t i = 0; i < set.entry_count && count_ < all_.size(); ++i, ++place) {
      if (place >= set.entry_count) place = 0;
      Entry& entry = set.entries[place];
      if (entry.wants_input()) add(entry);
    }
    // If some entries were not looked at, the next wait begins with them.
    if (count_ == all_.size()) set.next_look = place;
    std::ranges::sort(all(), {}, &Item::since);
  }
  std::span<Item> all() { return std::span(all_).first(count_); }

 private:
  void add(Entry& entry) {
    std::uint64_t since = 0;
    std::uint64_t position = kNothingReported;
    bool has_input = true;
    if (const auto socket = SocketTable::find(entry.fd)) {
      if (!socket->is_switched()) return;
      const auto look = socket->receiver().look();
      position = look.tail;
      has_input = has_bytes_to_report(look, entry);
      if (!has_input && !has_output_edge_else_drop(look, entry)) return;
      since = socket->receiver().ready_at();
    } else {
      Set* inner = set_at(entry.fd);
      if (inner == nullptr || !is_inner_ready_else_drop_edge(*inner, entry, position)) return;
    }
    all_[count_++] = {std::max(since, entry.reported_at), &entry, position, has_input};
  }

  static constexpr std::size_t kCapacity = 128;  // entries that one wait can report
  std::array<Item, kCapacity> all_;
  std::size_t count_ = 0;
};

class Wait {
 public:
  Wait(int fd, Set& set, epoll_event* events, int max_events)
      : fd_(fd), set_(set), events_(events), max_events_(max_events) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait() { end_sleep(); }

  // Returns the result of the program's call.  `sleep(elapsed)` makes the kernel's call with the
  // rest of the timeout.
  template <class Sleep>
  int run(bool at_once, const sigset_t* mask, Sleep sleep) {
    const Time began = at_once ? Time{} : os::now();
    Duration elapsed{};
    for (;; elapsed = at_once ? Duration{} : os::now() - began) {
      if (any_ready()) {
        if (const int count = report(mask); count > 0) return count;
      }
      if (!at_once && has_switched_) {
        const int count = spin(mask);
        if (count != 0) return count;
      }
      if (!at_once && !begin_sleep()) continue;
      const processor::SleepTimer timer;
      const int count = sleep(elapsed);
      const int error = errno;
      if (!at_once) timer.ended(count > 0);
      const int result = count > 0 ? pass_on_kick(filter_events(count)) : count;
      end_sleep();
      errno = error;
      if (count <= 0 || result > 0 || (at_once && !kicked_)) return result;
      kicked_ = false;
      // The program may have closed the set meanwhile, and another set may have its number by now.
      if (Set* const now = set_at(fd_); now != nullptr && now != &set_) {
        errno = EBADF;
        return -1;
      }
    }
  }

 private:
  // Returns true if a ring has bytes to report.
  bool any_ready() {
    const Hold hold(set_);
    seen_changes_ = set_.changes;
    has_switched_ = false;
    has_unread_ = false;
    for (std::uint32_t i = 0; i < set_.entry_count; ++i) {
      Entry& entry = set_.entries[i];
      if ((entry.events & kInput) == 0) continue;
      if (!SocketTable::has(entry.fd)) {
        Set* inner = entry.wants_input() ? set_at(entry.fd) : nullptr;
        if (inner == nullptr) continue;
        has_switched_ = true;
        std::uint64_t position = kNothingReported;
        if (is_inner_ready_else_drop_edge(*inner, entry, position)) return true;
      } else {
        const auto socket = SocketTable::find(entry.fd);
        if (!socket || !socket->is_switched()) continue;
        const auto look = socket->receiver().look();
        has_unread_ |= look.bytes > 0;
        if (!entry.wants_input()) continue;
        has_switched_ = true;
        if (has_bytes_to_report(look, entry) || has_output_edge_else_drop(look, entry)) return true;
      }
    }
    return false;
  }

  // Reports what the kernel and the rings have now.  The kernel's events come first: most of them
  // are older, since bytes go by TCP while the thread sleeps, and by the ring while the thread is
  // awake.  One place in the array is kept for the rings.  If there is only one place, rings and
  // kernel take turns.
  int report(const sigset_t* mask) {
    const bool asks_kernel = max_events_ > 1 || take_turns();
    int count = 0;
    if (asks_kernel) {
      count = next().epoll_pwait(fd_, events_, std::max(max_events_ - 1, 1), 0, mask);
      count = count > 0 ? filter_events(count) : 0;
    }
    return pass_on_kick(add_rings(count, !asks_kernel));
  }

  // Returns true at every second call for the set.
  bool take_turns() {
    const Hold hold(set_);
    set_.was_kernels_turn = !set_.was_kernels_turn;
    return set_.was_kernels_turn;
  }

  // Adds the events of the rings to the `count` events of the kernel.  `with_output` is set if the
  // kernel was not asked, so that the output events are still missing.  Returns the number of all
  // events.
  int add_rings(int count, bool with_output) {
    const Hold hold(set_);
    const std::uint64_t now = processor::ticks();
    int end = count;
    ReadyRings ready(set_);
    for (const auto& [since, entry, position, has_input] : ready.all()) {
      epoll_event* same = std::find_if(events_, events_ + count, [&](const epoll_event& e) {
        return e.data.u64 == entry->data.u64;
      });
      if (same == events_ + count) {
        if (end == max_events_) continue;
        same = events_ + end++;
        *same = {.events = 0, .data = entry->data};
      }
      if (has_input) same->events |= entry->events & kInput;
      if (with_output || (entry->events & EPOLLET) != 0) same->events |= output_of(*entry);
      if (same->events == 0) --end;  // the room for output is gone
      if (position != kNothingReported) entry->last_reported = position;
      entry->reported_at = now;
      if (entry->is_one_shot()) entry->is_armed = false;
    }
    return end;
  }

  // Looks through `count` events of the kernel, and drops those that the program must not see.
  // Returns how many events remain.
  int filter_events(int count) {
    const Hold hold(set_);
    // During a sleep, another thread may have added or armed an entry with unread bytes.  The
    // kernel may report such an entry before epoll_ctl() has returned.
    has_unread_ |= is_sleeping_ && set_.changes != seen_changes_;
    int end = 0;
    for (int i = 0; i < count; ++i) end = filter_event(end, events_[i]);
    return end;
  }
  int filter_event(int end, epoll_event event) {
    if (event.data.u64 == kick_data()) {
      kicked_ = true;
      return end;
    }
    if (set_.one_shot_count > 0) {
      Entry* entry = entry_of(set_, event.data);
      if (entry != nullptr && entry->is_one_shot()) {
        // An entry with EPOLLONESHOT was reported for bytes in its ring, so this event of the
        // kernel is dropped.  The kernel repeats it when the program arms the entry again.
        if (!entry->is_armed) entry = armed_entry_of(set_, event.data);
        if (entry == nullptr) return end;
        if (is_ready(*entry)) event.events |= entry->events & kInput;
        entry->is_armed = false;
      }
    }
    // An event of output must also report unread input in the ring, because TCP would report both
    // together, at an edge or when the entry is armed.  An event of input after a sleep reports the
    // unread bytes of the ring as well: they are older, so TCP makes no further edge for them.
    if (has_unread_ && (is_sleeping_ || (event.events & kInput) == 0)) {
      if (Entry* entry = entry_of(set_, event.data)) event.events |= unread_input(*entry);
    }
    events_[end] = event;
    return end + 1;
  }

  // Wakes another thread for the set if kick() has woken this one, and if a ring still has bytes.
  int pass_on_kick(int count) {
    if (kicked_ && count > 0 && has_ready(set_)) kick(fd_);
    return count;
  }

  // Looks at rings and kernel for a moment.  Returns the number of events, 0 if there are none, or
  // -1 for an error.
  int spin(const sigset_t* mask) {
    int from_kernel = 0;
    const auto kernel_has_news = [&] {
      from_kernel = next().epoll_pwait(fd_, events_, max_events_, 0, mask);
      return from_kernel != 0;
    };
    switch (processor::spin([&] { return any_ready(); }, kernel_has_news)) {
      case processor::SpinResult::kBytes: return report(mask);
      case processor::SpinResult::kKernel:
        return from_kernel > 0 ? pass_on_kick(filter_events(from_kernel)) : -1;
      case processor::SpinResult::kNothing: break;
    }
    return 0;
  }

  bool begin_sleep() {
    is_sleeping_ = epolls::begin_sleep(set_, false);
    return is_sleeping_;
  }
  void end_sleep() {
    if (std::exchange(is_sleeping_, false)) epolls::end_sleep(set_);
  }

  int fd_;
  Set& set_;
  epoll_event* events_;
  int max_events_;
  bool has_switched_ = false;  // a connection that waits for input uses a ring, so a spin may help
  bool has_unread_ = false;    // a ring may have bytes, even if they were reported before
  std::uint32_t seen_changes_ = 0;  // Set::changes at the last any_ready()
  bool is_sleeping_ = false;
  bool kicked_ = false;  // the kernel has reported kick()
};

template <class Sleep>
int wait(int fd, epoll_event* events, int max_events, bool at_once, const sigset_t* mask,
         Sleep sleep) {
  Set* set = set_at(fd);
  if (set == nullptr || events == nullptr || max_events <= 0) return sleep(Duration{});
  return Wait(fd, *set, events, max_events).run(at_once, mask, sleep);
}

// Returns the rest of a timeout in milliseconds.  A negative or zero timeout stays the same.
int remaining(int timeout, Duration elapsed) {
  if (timeout <= 0) return timeout;
  const auto elapsed_ms = std::chrono::floor<std::chrono::milliseconds>(elapsed).count();
  return static_cast<int>(std::max<std::int64_t>(timeout - elapsed_ms, 0));
}
timespec remaining(const timespec& timeout, Duration elapsed) {
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

VB_EXPORT int epoll_wait(int fd, epoll_event* events, int max_events, int timeout) {
  return epolls::wait(fd, events, max_events, timeout == 0, nullptr, [&](Duration elapsed) {
    return next().epoll_wait(fd, events, max_events, epolls::remaining(timeout, elapsed));
  });
}
VB_EXPORT int epoll_pwait(int fd, epoll_event* events, int max_events, int timeout,
                          const sigset_t* mask) {
  return epolls::wait(fd, events, max_events, timeout == 0, mask, [&](Duration elapsed) {
    return next().epoll_pwait(fd, events, max_events, epolls::remaining(timeout, elapsed), mask);
  });
}
VB_EXPORT int epoll_pwait2(int fd, epoll_event* events, int max_events, const timespec* timeout,
                           const sigset_t* mask) {
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
  return epolls::wait(fd, events, max_events, at_once, mask, [&](Duration elapsed) {
    if (timeout == nullptr) return next().epoll_pwait2(fd, events, max_events, nullptr, mask);
    const timespec left = epolls::remaining(*timeout, elapsed);
    return next().epoll_pwait2(fd, events, max_events, &left, mask);
  });
}
