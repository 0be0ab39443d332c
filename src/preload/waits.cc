#include "preload/waits.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <ranges>
#include <span>
#include <utility>

#include "preload/epolls.h"
#include "preload/export.h"
#include "preload/next.h"
#include "preload/processor.h"
#include "preload/timeouts.h"

namespace verbena::preload {
namespace waits {

bool begin_sleep_with_known_bytes(Socket& socket, std::uint64_t known_tail) {
  const WaitLock lock(socket);
  if (!socket.uses_stream()) {
    ++socket.sleepers;
    return true;
  }
  stream::Receiver receiver = socket.receiver();
  const auto status = receiver.ring_status();
  if (status.bytes > 0 && status.tail != known_tail) return false;
  const auto withdrawn = receiver.withdraw(status.tail);
  // If the memory holds invalid values, the next call that reads resets the connection.
  return !withdrawn || *withdrawn;
}

bool begin_sleep(Socket& socket) {
  constexpr std::uint64_t kNoTail = ~std::uint64_t{0};
  return begin_sleep_with_known_bytes(socket, kNoTail);
}

void begin_sleep_always(Socket& socket) {
  for (;;) {
    const std::uint64_t tail = socket.uses_stream() ? socket.receiver().ring_status().tail : 0;
    if (begin_sleep_with_known_bytes(socket, tail)) return;
  }
}

void end_sleep(Socket& socket) {
  const WaitLock lock(socket);
  if (socket.uses_stream()) {
    socket.receiver().promise();
  } else if (socket.sleepers > 0) {
    --socket.sleepers;
  }
}

namespace {

// Lists the descriptors of a poll() or select() call that are connections or known epoll sets.
class WaitList {
 public:
  // Allocates space for `capacity` descriptors.  The list converts to false if this fails.
  explicit WaitList(std::size_t capacity) : capacity_(capacity) {
    if (capacity > kInlineItems) {
      void* memory = ::mmap(nullptr, capacity * sizeof(Item), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      all_ = memory == MAP_FAILED ? nullptr : static_cast<Item*>(memory);
    }
  }
  WaitList(const WaitList&) = delete;
  WaitList& operator=(const WaitList&) = delete;
  ~WaitList() {
    end_all();
    std::destroy_n(all_, count_);
    if (all_ != inline_items() && all_ != nullptr) ::munmap(all_, capacity_ * sizeof(Item));
  }
  explicit operator bool() const { return all_ != nullptr; }

  // Adds a descriptor, if it is a connection or a known epoll set.  Returns false if the list is
  // full.
  bool add(int fd) {
    SocketUse socket = SocketTable::find(fd);
    epolls::Set* set = socket ? nullptr : epolls::find_set(fd);
    if (!socket && set == nullptr) return true;
    if (count_ == std::max(capacity_, kInlineItems)) return false;
    std::construct_at(all_ + count_++, std::move(socket), set, fd);
    return true;
  }
  bool empty() const { return count_ == 0; }

  // Finds the items whose rings have unread bytes.  Returns true if there are any.
  bool find_ready() {
    bool any = false;
    for (Item& one : all()) any |= one.is_ready = has_bytes(one);
    return any;
  }
  // Calls visit(fd) for each item that the last find_ready() has found.
  template <class Visit>
  void for_each_ready(Visit visit) const {
    for (const Item& one : all()) {
      if (one.is_ready) visit(one.fd);
    }
  }

  // Spins for a moment until a ring has bytes, or until `kernel_has_events()` returns true.
  template <class KernelCheck>
  void spin(KernelCheck kernel_has_events) const {
    const auto ring_has_bytes = [this] { return std::ranges::any_of(all(), has_bytes); };
    const bool any_uses_stream = std::ranges::any_of(
        all(), [](const Item& one) { return one.set != nullptr || one.socket->uses_stream(); });
    if (any_uses_stream) processor::spin(ring_has_bytes, kernel_has_events);
  }

  // Begins the sleeps of all items.  Returns false, and begins no sleep, if a ring has bytes.
  bool begin_all() {
    for (; sleep_count_ < count_; ++sleep_count_) {
      if (begin_sleep(all_[sleep_count_])) continue;
      end_all();
      return false;
    }
    return true;
  }
  void end_all() {
    while (sleep_count_ > 0) {
      const Item& one = all_[--sleep_count_];
      if (one.set != nullptr) {
        epolls::end_sleep(*one.set);
      } else {
        waits::end_sleep(*one.socket);
      }
    }
  }

 private:
  struct Item {
    SocketUse socket;
    epolls::Set* set;  // null for a connection
    int fd;
    bool is_ready = false;
  };
  static constexpr std::size_t kInlineItems = 128;  // up to this many items need no mmap()

  static bool has_bytes(const Item& one) {
    if (one.set != nullptr) return epolls::has_ready_entry(*one.set);
    return one.socket->uses_stream() && one.socket->receiver().ring_status().bytes > 0;
  }
  static bool begin_sleep(const Item& one) {
    return one.set != nullptr ? epolls::begin_sleep(*one.set, false)
                              : waits::begin_sleep(*one.socket);
  }
  std::span<Item> all() const { return {all_, count_}; }
  Item* inline_items() { return reinterpret_cast<Item*>(inline_items_.data()); }

  alignas(Item) std::array<std::byte, kInlineItems * sizeof(Item)> inline_items_;
  Item* all_ = inline_items();
  std::size_t capacity_;
  std::size_t count_ = 0;
  std::size_t sleep_count_ = 0;
};

// Waits for the items and for the kernel.  `sleep()` makes the kernel's call with the program's
// timeout.  `report()` makes the call with timeout zero, and adds the items that are ready.
template <class KernelCheck, class Report, class Sleep>
int wait_for(WaitList& list, bool at_once, KernelCheck kernel_has_events, Report report,
             Sleep sleep) {
  if (list.empty()) return sleep();
  while (!list.find_ready()) {
    if (at_once) return sleep();
    list.spin(kernel_has_events);
    if (!list.begin_all()) continue;
    const processor::SleepTimer timer;
    const int ready = sleep();
    const int error = errno;
    timer.ended(ready > 0);
    list.end_all();
    errno = error;
    return ready;
  }
  return report();
}

// Returns true if the descriptor is a connection or a known epoll set.
bool may_have_ring(int fd) { return SocketTable::has(fd) || epolls::find_set(fd) != nullptr; }

int no_memory() {
  errno = ENOMEM;
  return -1;
}

constexpr timespec kAtOnce{};
constexpr short kInput = POLLIN | POLLRDNORM;

// Polls with timeout zero, and adds input events for connections whose rings have bytes.
int poll_now(pollfd* fds, nfds_t count, const WaitList& list) {
  int ready = next().ppoll(fds, count, &kAtOnce, nullptr);
  if (ready < 0) return ready;
  list.for_each_ready([&](int fd) {
    for (nfds_t i = 0; i < count; ++i) {
      const auto input = static_cast<short>(fds[i].events & kInput);
      if (fds[i].fd != fd || input == 0) continue;
      if (fds[i].revents == 0) ++ready;
      fds[i].revents = static_cast<short>(fds[i].revents | input);
    }
  });
  return ready;
}

template <class Sleep>
int poll_all(pollfd* fds, nfds_t count, bool at_once, Sleep sleep) {
  const auto needs_wait = [](const pollfd& one) {
    return (one.events & kInput) != 0 && may_have_ring(one.fd);
  };
  const std::span all(fds, fds != nullptr ? count : 0);
  WaitList list(static_cast<std::size_t>(std::ranges::count_if(all, needs_wait)));
  if (!list) return no_memory();
  for (const pollfd& one : all) {
    // If another thread has connected descriptors since the count, this function counts again.
    if (needs_wait(one) && !list.add(one.fd)) return poll_all(fds, count, at_once, sleep);
  }
  return wait_for(
      list, at_once, [&] { return next().ppoll(fds, count, &kAtOnce, nullptr) != 0; },
      [&] { return poll_now(fds, count, list); }, sleep);
}

// These two functions read and change a set of descriptors, which may be longer than fd_set.
bool has(fd_set* set, int fd) {
  return set != nullptr && (reinterpret_cast<std::uint64_t*>(set)[fd / 64] >> (fd % 64) & 1) != 0;
}
void add(fd_set* set, int fd) {
  reinterpret_cast<std::uint64_t*>(set)[fd / 64] |= std::uint64_t{1} << (fd % 64);
}

// Returns the number of descriptors that this library checks in select() at most.  Some programs
// pass getdtablesize() as the count, with an fd_set of the usual size.  So beyond FD_SETSIZE this
// library reads the set only up to the highest descriptor that may have a ring.
int checked_count_max() {
  return std::max(
      {FD_SETSIZE, SocketTable::highest_descriptor() + 1, epolls::highest_descriptor() + 1});
}

template <class Sleep>
int select_all(int count, fd_set* in, fd_set* out, fd_set* except, bool at_once, Sleep sleep) {
  const auto needs_wait = [in](int fd) { return has(in, fd) && may_have_ring(fd); };
  const int checked_count = std::min(count, checked_count_max());
  const auto all = std::views::iota(0, std::max(in != nullptr ? checked_count : 0, 0));
  WaitList list(static_cast<std::size_t>(std::ranges::count_if(all, needs_wait)));
  if (!list) return no_memory();
  for (const int fd : all) {
    // As in poll_all(), another thread may have connected descriptors since the count.
    if (needs_wait(fd) && !list.add(fd)) return select_all(count, in, out, except, at_once, sleep);
  }
  const auto kernel_has_events = [&] {
    std::array<pollfd, 128> fds{};  // the spin does not check further descriptors
    nfds_t n = 0;
    for (int fd = 0; fd < checked_count && n < fds.size(); ++fd) {
      const int events = (has(in, fd) ? POLLIN : 0) | (has(out, fd) ? POLLOUT : 0) |
                         (has(except, fd) ? POLLPRI : 0);
      if (events != 0) fds[n++] = {.fd = fd, .events = static_cast<short>(events), .revents = 0};
    }
    return next().ppoll(fds.data(), n, &kAtOnce, nullptr) != 0;
  };
  const auto select_now = [&] {
    timeval zero{};
    int ready = next().select(count, in, out, except, &zero);
    if (ready < 0) return ready;
    list.for_each_ready([&](int fd) {
      if (has(in, fd)) return;
      add(in, fd);
      ++ready;
    });
    return ready;
  };
  return wait_for(list, at_once, kernel_has_events, select_now, sleep);
}

}  // namespace

void after_fork_in_child() {
  SocketTable::for_each(0, kDescriptorsMax - 1, [](int, Socket& socket) {
    socket.sleepers = 0;
    socket.wait_lock.store(false);
  });
}

}  // namespace waits
}  // namespace verbena::preload

using verbena::preload::next;
namespace waits = verbena::preload::waits;

VB_EXPORT int poll(pollfd* fds, nfds_t count, int timeout) {
  return waits::poll_all(fds, count, timeout == 0,
                         [&] { return next().poll(fds, count, timeout); });
}
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
VB_EXPORT int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t array_bytes) {
  if (array_bytes / sizeof(pollfd) < count) __builtin_trap();
  return poll(fds, count, timeout);
}
VB_EXPORT int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (!verbena::preload::is_valid(timeout)) return next().ppoll(fds, count, timeout, mask);
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
  return waits::poll_all(fds, count, at_once,
                         [&] { return next().ppoll(fds, count, timeout, mask); });
}
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
VB_EXPORT int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                          size_t array_bytes) {
  if (array_bytes / sizeof(pollfd) < count) __builtin_trap();
  return ppoll(fds, count, timeout, mask);
}
VB_EXPORT int select(int count, fd_set* in, fd_set* out, fd_set* except, timeval* timeout) {
  if (!verbena::preload::is_valid(timeout)) return next().select(count, in, out, except, timeout);
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_usec == 0;
  return waits::select_all(count, in, out, except, at_once,
                           [&] { return next().select(count, in, out, except, timeout); });
}
VB_EXPORT int pselect(int count, fd_set* in, fd_set* out, fd_set* except, const timespec* timeout,
                      const sigset_t* mask) {
  if (!verbena::preload::is_valid(timeout))
    return next().pselect(count, in, out, except, timeout, mask);
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
  return waits::select_all(count, in, out, except, at_once,
                           [&] { return next().pselect(count, in, out, except, timeout, mask); });
}
