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
#include "preload/timeouts.h"

// Defines the functions that wait for epoll sets (epoll_wait() and similar functions).
namespace verbena::preload::epolls {
namespace {

// Returns the output events that the entry requests and that are ready now.  Like the kernel, the
// library reports them in the same event as input.
std::uint32_t output_of(const Entry& entry) {
  const std::uint32_t wanted = entry.events & (EPOLLOUT | EPOLLWRNORM);
  if (wanted == 0) return 0;
  const auto socket = SocketTable::find(entry.fd);
  if (socket && socket->uses_stream() && socket->sender().is_writable()) return wanted;
  pollfd one{.fd = entry.fd, .events = POLLOUT | POLLWRNORM, .revents = 0};
  const timespec at_once{};
  next().ppoll(&one, 1, &at_once, nullptr);
  return wanted & static_cast<std::uint32_t>(one.revents);
}

// Returns true if an entry with EPOLLET must report output, because bytes entered its ring and were
// read before a wait reported them.  In the kernel, the arrival of such bytes is an edge, at which
// a wait reports EPOLLOUT if the entry requests it and the socket is writable.  If an edge need not
// report output, this function consumes it: the edge has no effect on later waits.
bool test_output_and_consume_edge(const stream::Receiver::RingStatus& status, Entry& entry) {
  if ((entry.events & EPOLLET) == 0 || status.bytes > 0 || status.tail == entry.last_reported)
    return false;
  // For an entry that was never reported, the kernel itself reports output.
  const bool is_known = entry.last_reported != kNothingReported;
  if (is_known && output_of(entry) != 0) return true;
  entry.last_reported = status.tail;
  return false;
}

// Returns the input events that the entry requests, if its ring has unread bytes.  The bytes may
// have been reported before.  With EPOLLET, marks them as reported.
std::uint32_t unread_input(Entry& entry) {
  const auto socket = SocketTable::find(entry.fd);
  if (!socket || !socket->uses_stream() || !entry.is_armed_for_input()) return 0;
  const auto status = socket->receiver().ring_status();
  if (status.bytes == 0) return 0;
  if ((entry.events & EPOLLET) != 0) entry.last_reported = status.tail;
  return entry.events & kInput;
}

// Collects the entries whose rings have bytes, in the order in which the kernel would report them.
// An entry becomes ready when its first unread byte is sent, or at its last report, whichever is
// later.  The entry that has been ready longest comes first.  So if a peer sends on two
// connections, both are served in this order.  And each connection is served after some waits, even
// if a wait can return few events.
class ReadyRings {
 public:
  struct Item {
    std::uint64_t ready_since;  // in processor::ticks()
    Entry* entry;
    std::uint64_t position;  // the new value of Entry::last_reported, unless kNothingReported
    bool has_input;  // false: the bytes of the edge were read already, so only output is reported
  };

  // REQUIRES: the caller has locked the set, and keeps the lock while it uses all().
  explicit ReadyRings(Set& set) {
    std::uint32_t index = set.next_scan_index;
    for (std::uint32_t i = 0; i < set.entry_count && count_ < all_.size(); ++i, ++index) {
      if (index >= set.entry_count) index = 0;
      Entry& entry = set.entries[index];
      if (entry.is_armed_for_input()) add(entry);
    }
    // If the list is full, the next wait begins with the entries that this loop has not checked.
    if (count_ == all_.size()) set.next_scan_index = index;
    std::ranges::sort(all(), {}, &Item::ready_since);
  }
  std::span<Item> all() { return std::span(all_).first(count_); }

 private:
  void add(Entry& entry) {
    std::uint64_t unread_since = 0;
    std::uint64_t position = kNothingReported;
    bool has_input = true;
    if (const auto socket = SocketTable::find(entry.fd)) {
      if (!socket->uses_stream()) return;
      const auto status = socket->receiver().ring_status();
      position = status.tail;
      has_input = has_bytes_to_report(status, entry);
      if (!has_input && !test_output_and_consume_edge(status, entry)) return;
      unread_since = socket->receiver().unread_since();
    } else {
      Set* inner = find_set(entry.fd);
      if (inner == nullptr || !test_inner_and_consume_edge(*inner, entry, position)) return;
    }
    all_[count_++] = {std::max(unread_since, entry.reported_at), &entry, position, has_input};
  }

  static constexpr std::size_t kCapacity = 128;  // one wait adds at most this many entries
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
  // remaining time of the timeout.
  template <class Sleep>
  int run(bool at_once, const sigset_t* mask, Sleep sleep) {
    const Time began = at_once ? Time{} : os::now();
    Duration elapsed{};
    for (;; elapsed = at_once ? Duration{} : os::now() - began) {
      if (any_ready()) {
        if (const int count = report(mask); count > 0) return count;
      }
      if (!at_once && is_spin_useful_) {
        const int count = spin(mask);
        if (count != 0) return count;
      }
      if (!at_once && !begin_sleep()) continue;
      const processor::SleepTimer timer;
      const int count = sleep(elapsed);
      const int error = errno;
      if (!at_once) timer.ended(count > 0);
      const int result = count > 0 ? pass_on_wake(filter_events(count)) : count;
      end_sleep();
      errno = error;
      if (count <= 0 || result > 0 || (at_once && !has_wake_event_)) return result;
      has_wake_event_ = false;
      // Meanwhile the program may have closed the set, and the same descriptor may name another set
      // now.
      if (Set* const set_now = find_set(fd_); set_now != nullptr && set_now != &set_) {
        errno = EBADF;
        return -1;
      }
    }
  }

 private:
  // Returns true if a ring has bytes or an edge to report.  Then has_unread_ is true, because this
  // function has not checked the later entries.  If it returns false, is_spin_useful_ and
  // has_unread_ describe all entries.
  bool any_ready() {
    const SetLock lock(set_);
    seen_change_count_ = set_.change_count;
    is_spin_useful_ = false;
    has_unread_ = false;
    for (std::uint32_t i = 0; i < set_.entry_count; ++i) {
      Entry& entry = set_.entries[i];
      if ((entry.events & kInput) == 0) continue;
      if (!SocketTable::has(entry.fd)) {
        Set* inner = entry.is_armed_for_input() ? find_set(entry.fd) : nullptr;
        if (inner == nullptr) continue;
        is_spin_useful_ = true;
        std::uint64_t position = kNothingReported;
        if (test_inner_and_consume_edge(*inner, entry, position)) return has_unread_ = true;
      } else {
        const auto socket = SocketTable::find(entry.fd);
        if (!socket || !socket->uses_stream()) continue;
        const auto status = socket->receiver().ring_status();
        has_unread_ |= status.bytes > 0;
        if (!entry.is_armed_for_input()) continue;
        is_spin_useful_ = true;
        if (has_bytes_to_report(status, entry) || test_output_and_consume_edge(status, entry))
          return has_unread_ = true;
      }
    }
    return false;
  }

  // Returns the events that the kernel and the rings have now.  The kernel's events come first:
  // most of them are older, since bytes go by TCP while the thread sleeps, and by the ring while
  // the thread is awake.  One element of the program's array is reserved for the rings.  If the
  // array has only one element, alternate calls report the kernel's events and those of the rings.
  int report(const sigset_t* mask) {
    const bool polls_kernel = max_events_ > 1 || alternate();
    int count = 0;
    if (polls_kernel) {
      count = next().epoll_pwait(fd_, events_, std::max(max_events_ - 1, 1), 0, mask);
      count = count > 0 ? filter_events(count) : 0;
    }
    return pass_on_wake(add_rings(count, !polls_kernel));
  }

  // Returns true in every second call for the set.  Then the kernel reports, otherwise the rings.
  bool alternate() {
    const SetLock lock(set_);
    set_.reported_kernel_last = !set_.reported_kernel_last;
    return set_.reported_kernel_last;
  }

  // Adds the events of the rings to the `count` events of the kernel.  Set `with_output` if the
  // kernel was not polled, so that the output events are still missing.  Returns the number of all
  // events.
  int add_rings(int count, bool with_output) {
    const SetLock lock(set_);
    const std::uint64_t now = processor::ticks();
    int end = count;
    ReadyRings ready(set_);
    for (const auto& [ready_since, entry, position, has_input] : ready.all()) {
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
      if (position != kNothingReported) entry->last_reported = position;
      if (same->events == 0) {  // the socket is not writable any more, so there is no report
        --end;
        continue;
      }
      entry->reported_at = now;
      if (entry->is_one_shot()) entry->is_armed = false;
    }
    return end;
  }

  // Checks `count` events of the kernel, and removes those that the program must not see.  Returns
  // the number of events that remain.
  int filter_events(int count) {
    const SetLock lock(set_);
    // During a sleep, another thread may have added or armed an entry with unread bytes.  The
    // kernel may report such an entry before epoll_ctl() has returned.
    has_unread_ |= is_sleeping_ && set_.change_count != seen_change_count_;
    int end = 0;
    for (int i = 0; i < count; ++i) end = filter_event(end, events_[i]);
    return end;
  }
  int filter_event(int end, epoll_event event) {
    if (event.data.u64 == wake_data()) {
      has_wake_event_ = true;
      return end;
    }
    if (set_.one_shot_count > 0) {
      Entry* entry = entry_of(set_, event.data);
      if (entry != nullptr && entry->is_one_shot()) {
        // If an entry with EPOLLONESHOT was reported already for bytes in its ring, the library
        // drops this event.  The kernel repeats the event when the program arms the entry again.
        if (!entry->is_armed) entry = armed_entry_of(set_, event.data);
        if (entry == nullptr) return end;
        if (is_ready(*entry)) event.events |= entry->events & kInput;
        entry->is_armed = false;
      }
    }
    // The kernel's event must include the unread bytes in the ring in two cases:
    //  * The event has no input.  TCP would report output and unread bytes together, at an edge or
    //    when the entry is armed.  So this code adds the input.
    //  * The event has input, and the thread has slept.  The bytes in the ring are older than those
    //    in TCP, and with TCP they would cause no further edge.  So unread_input() marks them as
    //    reported.
    if (has_unread_ && (is_sleeping_ || (event.events & kInput) == 0)) {
      if (Entry* entry = entry_of(set_, event.data)) event.events |= unread_input(*entry);
    }
    events_[end] = event;
    return end + 1;
  }

  // Wakes another thread for the set if wake_one_sleeper() has woken this thread, and if a ring
  // still has bytes to report.
  int pass_on_wake(int count) {
    if (has_wake_event_ && count > 0 && has_ready_entry(set_)) wake_one_sleeper(fd_);
    return count;
  }

  // Checks the rings and the kernel for a moment.  Returns the number of events, which may be 0, or
  // -1 for an error.
  int spin(const sigset_t* mask) {
    int from_kernel = 0;
    const auto kernel_has_events = [&] {
      from_kernel = next().epoll_pwait(fd_, events_, max_events_, 0, mask);
      return from_kernel != 0;
    };
    switch (processor::spin([&] { return any_ready(); }, kernel_has_events)) {
      case processor::SpinResult::kBytes: return report(mask);
      case processor::SpinResult::kKernelEvent:
        return from_kernel > 0 ? pass_on_wake(filter_events(from_kernel)) : -1;
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
  bool is_spin_useful_ = false;          // some entry that waits for input uses a ring
  bool has_unread_ = false;              // a ring may have bytes, even if they were reported before
  std::uint32_t seen_change_count_ = 0;  // Set::change_count at the last any_ready()
  bool is_sleeping_ = false;
  bool has_wake_event_ = false;  // the kernel has reported the event of wake_one_sleeper()
};

template <class Sleep>
int wait(int fd, epoll_event* events, int max_events, bool at_once, const sigset_t* mask,
         Sleep sleep) {
  Set* set = find_set(fd);
  if (set == nullptr) before_wait_for_unknown_set(fd);
  if (set == nullptr || events == nullptr || max_events <= 0) return sleep(Duration{});
  return Wait(fd, *set, events, max_events).run(at_once, mask, sleep);
}

// Returns the remaining time of a timeout in milliseconds.  A negative or zero timeout stays the
// same.
int remaining(int timeout, Duration elapsed) {
  if (timeout <= 0) return timeout;
  const auto elapsed_ms = std::chrono::floor<std::chrono::milliseconds>(elapsed).count();
  return static_cast<int>(std::max<std::int64_t>(timeout - elapsed_ms, 0));
}
timespec remaining(const timespec& timeout, Duration elapsed) {
  const Duration all = duration_of(timeout);
  if (all == Duration::max()) return timeout;
  const Duration rest = std::max(all - elapsed, Duration{});
  const auto seconds = std::chrono::floor<std::chrono::seconds>(rest);
  return {.tv_sec = seconds.count(), .tv_nsec = (rest - seconds).count()};
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
  if (!verbena::preload::is_valid(timeout))
    return next().epoll_pwait2(fd, events, max_events, timeout, mask);
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
  return epolls::wait(fd, events, max_events, at_once, mask, [&](Duration elapsed) {
    if (timeout == nullptr) return next().epoll_pwait2(fd, events, max_events, nullptr, mask);
    const timespec rest = epolls::remaining(*timeout, elapsed);
    return next().epoll_pwait2(fd, events, max_events, &rest, mask);
  });
}
