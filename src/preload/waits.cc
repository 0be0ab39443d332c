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

namespace verbena::preload {
namespace waits {
bool enter_beyond(Socket& socket, std::uint64_t known) {
  const WaitLock lock(socket);
  if (!socket.is_switched()) {
    ++socket.sleepers;
    return true;
  }
  stream::Receiver receiver = socket.receiver();
  const auto look = receiver.look();
  if (look.bytes > 0 && look.seen != known) return false;
  const auto withdrawn = receiver.withdraw(look.seen);
  // If the memory holds nonsense, the next call that reads ends the connection.
  return !withdrawn || *withdrawn;
}

bool enter(Socket& socket) {
  constexpr std::uint64_t kNothing = ~std::uint64_t{0};
  return enter_beyond(socket, kNothing);
}

void enter_always(Socket& socket) {
  for (;;) {
    const std::uint64_t now = socket.is_switched() ? socket.receiver().look().seen : 0;
    if (enter_beyond(socket, now)) return;
  }
}

void leave(Socket& socket) {
  const WaitLock lock(socket);
  if (socket.is_switched()) {
    socket.receiver().promise();
  } else if (socket.sleepers > 0) {
    --socket.sleepers;
  }
}

namespace {

// Holds those descriptors of a call that are connections or known epoll sets.
class Waited {
 public:
  // Makes room for `most` connections.  Test the object before use: there may be no memory for
  // many.
  explicit Waited(std::size_t most) : most_(most) {
    if (most > kFew) {
      void* memory = ::mmap(nullptr, most * sizeof(One), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      all_ = memory == MAP_FAILED ? nullptr : static_cast<One*>(memory);
    }
  }
  Waited(const Waited&) = delete;
  Waited& operator=(const Waited&) = delete;
  ~Waited() {
    leave_all();
    std::destroy_n(all_, count_);
    if (all_ != few() && all_ != nullptr) ::munmap(all_, most_ * sizeof(One));
  }
  explicit operator bool() const { return all_ != nullptr; }

  void add(int fd) {
    SocketUse socket = SocketTable::find(fd);
    epolls::Set* set = socket ? nullptr : epolls::set_at(fd);
    if (socket || set != nullptr) std::construct_at(all_ + count_++, std::move(socket), set, fd);
  }
  bool empty() const { return count_ == 0; }

  // Finds the connections whose rings have bytes.  Returns true if there are some.
  bool find_ready() {
    bool any = false;
    for (One& one : all()) any |= one.is_ready = has_bytes(one);
    return any;
  }
  // Calls visit(fd) for each connection that the last find_ready() has found.
  template <class Visit>
  void for_each_ready(Visit visit) const {
    for (const One& one : all()) {
      if (one.is_ready) visit(one.fd);
    }
  }

  // Spins until a ring has bytes, or until `kernel_has_news()` returns true.
  template <class News>
  void spin(News kernel_has_news) const {
    const auto ring_has_bytes = [this] { return std::ranges::any_of(all(), has_bytes); };
    const bool any_switched = std::ranges::any_of(
        all(), [](const One& one) { return one.set != nullptr || one.socket->is_switched(); });
    if (any_switched) processor::spin(ring_has_bytes, kernel_has_news);
  }

  // Withdraws all promises.  Returns false if a ring has bytes; then none is withdrawn.
  bool enter_all() {
    for (; entered_ < count_; ++entered_) {
      if (enter(all_[entered_])) continue;
      leave_all();
      return false;
    }
    return true;
  }
  void leave_all() {
    while (entered_ > 0) {
      const One& one = all_[--entered_];
      if (one.set != nullptr) {
        epolls::leave(*one.set);
      } else {
        waits::leave(*one.socket);
      }
    }
  }

 private:
  struct One {
    SocketUse socket;
    epolls::Set* set;  // null for a connection
    int fd;
    bool is_ready = false;
  };
  static constexpr std::size_t kFew = 128;  // this many need no mmap()

  static bool has_bytes(const One& one) {
    if (one.set != nullptr) return epolls::has_ready(*one.set);
    return one.socket->is_switched() && one.socket->receiver().look().bytes > 0;
  }
  static bool enter(const One& one) {
    return one.set != nullptr ? epolls::enter(*one.set, false) : waits::enter(*one.socket);
  }
  std::span<One> all() const { return {all_, count_}; }
  One* few() { return reinterpret_cast<One*>(few_.data()); }

  alignas(One) std::array<std::byte, kFew * sizeof(One)> few_;
  One* all_ = few();
  std::size_t most_;
  std::size_t count_ = 0;
  std::size_t entered_ = 0;
};

// Waits for the connections and for the kernel.  `sleep()` is the kernel's call with the program's
// timeout.  `now()` is the same call with timeout zero, and adds the connections that are ready.
template <class News, class Now, class Sleep>
int wait_for(Waited& waited, bool at_once, News kernel_has_news, Now now, Sleep sleep) {
  if (waited.empty()) return sleep();
  while (!waited.find_ready()) {
    if (at_once) return sleep();
    waited.spin(kernel_has_news);
    if (!waited.enter_all()) continue;
    const processor::Sleep slept;
    const int ready = sleep();
    const int error = errno;
    slept.ended(ready > 0);
    waited.leave_all();
    errno = error;
    return ready;
  }
  return now();
}

// Returns true if the descriptor is a connection or a known epoll set.
bool may_have_ring(int fd) { return SocketTable::has(fd) || epolls::set_at(fd) != nullptr; }

int no_memory() {
  errno = ENOMEM;
  return -1;
}

constexpr timespec kAtOnce{};
constexpr short kInput = POLLIN | POLLRDNORM;

// Polls at once, and adds what the rings have.
int poll_now(pollfd* fds, nfds_t count, const Waited& waited) {
  int ready = next().ppoll(fds, count, &kAtOnce, nullptr);
  if (ready < 0) return ready;
  waited.for_each_ready([&](int fd) {
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
  const auto is_waited = [](const pollfd& one) {
    return (one.events & kInput) != 0 && may_have_ring(one.fd);
  };
  const std::span all(fds, fds != nullptr ? count : 0);
  Waited waited(static_cast<std::size_t>(std::ranges::count_if(all, is_waited)));
  if (!waited) return no_memory();
  for (const pollfd& one : all) {
    if (is_waited(one)) waited.add(one.fd);
  }
  return wait_for(
      waited, at_once, [&] { return next().ppoll(fds, count, &kAtOnce, nullptr) != 0; },
      [&] { return poll_now(fds, count, waited); }, sleep);
}

// Reads and changes a set of descriptors, which may be longer than fd_set.
bool has(fd_set* set, int fd) {
  return set != nullptr && (reinterpret_cast<std::uint64_t*>(set)[fd / 64] >> (fd % 64) & 1) != 0;
}
void add(fd_set* set, int fd) {
  reinterpret_cast<std::uint64_t*>(set)[fd / 64] |= std::uint64_t{1} << (fd % 64);
}

// Returns the highest count of descriptors that select() has to look at.  Some programs pass
// getdtablesize() as the count, with an fd_set of the usual size.  So beyond FD_SETSIZE this
// library looks no further than the highest descriptor that may have a ring.
int looks_up_to() {
  return std::max({FD_SETSIZE, SocketTable::highest() + 1, epolls::highest() + 1});
}

template <class Sleep>
int select_all(int count, fd_set* in, fd_set* out, fd_set* except, bool at_once, Sleep sleep) {
  const auto is_waited = [in](int fd) { return has(in, fd) && may_have_ring(fd); };
  const int looked_at = std::min(count, looks_up_to());
  const auto all = std::views::iota(0, std::max(in != nullptr ? looked_at : 0, 0));
  Waited waited(static_cast<std::size_t>(std::ranges::count_if(all, is_waited)));
  if (!waited) return no_memory();
  for (const int fd : all) {
    if (is_waited(fd)) waited.add(fd);
  }
  const auto kernel_has_news = [&] {
    std::array<pollfd, 128> fds{};  // further descriptors are not looked at during the spin
    nfds_t n = 0;
    for (int fd = 0; fd < looked_at && n < fds.size(); ++fd) {
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
    waited.for_each_ready([&](int fd) {
      if (has(in, fd)) return;
      add(in, fd);
      ++ready;
    });
    return ready;
  };
  return wait_for(waited, at_once, kernel_has_news, select_now, sleep);
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
VB_EXPORT int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  if (room / sizeof(pollfd) < count) __builtin_trap();
  return poll(fds, count, timeout);
}
VB_EXPORT int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
  return waits::poll_all(fds, count, at_once,
                         [&] { return next().ppoll(fds, count, timeout, mask); });
}
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
VB_EXPORT int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                          size_t room) {
  if (room / sizeof(pollfd) < count) __builtin_trap();
  return ppoll(fds, count, timeout, mask);
}
VB_EXPORT int select(int count, fd_set* in, fd_set* out, fd_set* except, timeval* timeout) {
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_usec == 0;
  return waits::select_all(count, in, out, except, at_once,
                           [&] { return next().select(count, in, out, except, timeout); });
}
VB_EXPORT int pselect(int count, fd_set* in, fd_set* out, fd_set* except, const timespec* timeout,
                      const sigset_t* mask) {
  const bool at_once = timeout != nullptr && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
  return waits::select_all(count, in, out, except, at_once,
                           [&] { return next().pselect(count, in, out, except, timeout, mask); });
}
