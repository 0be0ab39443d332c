#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include "os/clock.h"
#include "preload/epoll_sets.h"
#include "preload/export.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/own_descriptors.h"
#include "preload/waits.h"
#include "preload/zeroed_array.h"

namespace verbena::preload {
namespace epolls {
namespace {

enum Flag : std::uint8_t {
  kInSet = 1,         // has an entry in at least one set
  kWaitsForEver = 2,  // it is in a set that can report only bytes of TCP
};

constinit std::array<std::atomic<Set*>, kSetsMax> sets{};
constinit ZeroedArray<std::atomic<Set*>, kDescriptorsMax> set_of{};
constinit ZeroedArray<std::atomic<std::uint8_t>, kDescriptorsMax> flags{};

// ---- waking

// When a set gets an entry whose ring has bytes, a descriptor that can always be read is put into
// the set.  It wakes a thread that sleeps for the set in the kernel.
constinit std::atomic<int> always_ready{-1};
constinit char kick_mark = 0;

int always_ready_descriptor() {
  int fd = always_ready.load();
  if (fd >= 0) return fd;
  const int made = own_descriptors::move_away(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (made < 0 || always_ready.compare_exchange_strong(fd, made)) return made;
  next().close(made);
  return fd;
}

// ---- entries; hold the set

// Begins a sleep of one thread for an entry.  Returns false, unless `always` is set, if the ring
// has bytes to report.  For EPOLLET, and for entries that do not wait for input, a thread may sleep
// while bytes that were reported before lie in the ring.
bool enter(const Entry& entry, bool always) {
  always |= !entry.wants_input();
  if (const auto socket = SocketTable::find(entry.fd)) {
    if (!always) {
      const std::uint64_t known = (entry.events & EPOLLET) != 0 ? entry.seen : kNothingSeen;
      return waits::enter_beyond(*socket, known);
    }
    waits::enter_always(*socket);
    return true;
  }
  Set* inner = set_at(entry.fd);
  if (inner == nullptr) return true;
  if (always || (entry.events & EPOLLET) == 0) return enter(*inner, always);
  // Nothing enters the rings of the inner set any more, so an edge cannot be missed.
  enter(*inner, true);
  if (!is_ready(entry)) return true;
  leave(*inner);
  return false;
}

void leave(int fd) {
  if (const auto socket = SocketTable::find(fd)) return waits::leave(*socket);
  if (Set* inner = set_at(fd)) leave(*inner);
}

std::uint64_t edges_of(const Entry& entry);

// Returns a number that changes with each edge of the set, which EPOLLET reports in a set around
// it: when bytes come into a ring, and when an entry becomes ready by epoll_ctl().  Set::edges
// counts the latter, and levels out what an entry adds to the sum when it comes, changes or goes.
std::uint64_t edges_of(const Set& set) {
  std::uint64_t sum = set.edges;
  for (std::uint32_t i = 0; i < set.count; ++i) sum += edges_of(set.entries[i]);
  return sum;
}

bool any_is_ready(const Set& set) {
  for (std::uint32_t i = 0; i < set.count; ++i) {
    if (is_ready(set.entries[i])) return true;
  }
  return false;
}

// Returns a number that grows with each byte that comes into a ring of the entry.
std::uint64_t edges_of(const Entry& entry) {
  if ((entry.events & kInput) == 0) return 0;
  if (const auto socket = SocketTable::find(entry.fd)) {
    return socket->is_switched() ? socket->receiver().look().seen : 0;
  }
  Set* inner = set_at(entry.fd);
  if (inner == nullptr) return 0;
  const Hold hold(*inner);
  return edges_of(*inner);
}

void remove(Set& set, int fd) {
  const std::uint32_t place = set.place[at(fd)];
  if (place == 0) return;
  set.edges += edges_of(set.entries[place - 1]);
  for (std::uint32_t i = 0; i < set.sleepers; ++i) leave(fd);
  if (set.entries[place - 1].is_one_shot()) --set.one_shots;
  set.entries[place - 1] = set.entries[--set.count];
  set.place[at(set.entries[place - 1].fd)] = place;
  set.place[at(fd)] = 0;
}

void clear(Set& set) {
  while (set.count > 0) remove(set, set.entries[set.count - 1].fd);
}

// Adds or changes an entry of the set whose descriptor is `set_fd`.
void change(int set_fd, Set& set, int fd, const epoll_event& event) {
  std::uint32_t& place = set.place[at(fd)];
  const bool is_new = place == 0;
  if (is_new) {
    place = ++set.count;
    set.entries[place - 1] = {};
    flags[at(fd)].fetch_or(kInSet);
  } else if (set.entries[place - 1].is_one_shot()) {
    --set.one_shots;
  }
  Entry& entry = set.entries[place - 1];
  const bool was_ready = !is_new && is_ready(entry);
  set.edges += edges_of(entry);
  entry = {.fd = fd, .events = event.events, .data = event.data};
  // As in the kernel, an entry that becomes ready by this call is an edge.
  set.edges += (!was_ready && is_ready(entry) ? 1 : 0) - edges_of(entry);
  if (entry.is_one_shot()) ++set.one_shots;
  for (std::uint32_t i = 0; is_new && i < set.sleepers; ++i) enter(entry, true);
  if (set.sleepers > 0 && is_ready(entry)) kick(set_fd);
}

// ---- sets

void add_set(int fd) {
  if (!has_number(fd)) return;
  for (auto& place : sets) {
    Set* set = place.load();
    if (set == nullptr) {
      void* memory = ::mmap(nullptr, sizeof(Set), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) return;
      Set* made = static_cast<Set*>(memory);
      if (!place.compare_exchange_strong(set, made)) {
        ::munmap(memory, sizeof(Set));
      } else {
        set = made;
      }
    }
    std::uint32_t none = 0;
    if (!set->descriptors.compare_exchange_strong(none, 1)) continue;
    const Hold hold(*set);
    if (set->sleepers > 0) {
      set->descriptors.store(0);
      continue;
    }
    clear(*set);
    set_of[at(fd)].store(set);
    return;
  }
}

// Bytes of the connection come by TCP from now on.  Those that are in the ring already cannot be
// reported then, so the connection ends with an error instead of waiting for ever.
void wait_for_ever(int fd) {
  if ((flags[at(fd)].fetch_or(kWaitsForEver) & kWaitsForEver) != 0) return;
  const auto socket = SocketTable::find(fd);
  while (socket && !waits::enter(*socket)) {
    if (socket->receiver().look().bytes == 0) continue;
    return leaving::reset(fd);
  }
}

// The program waits for the set in a way that this library does not see, so its connections must
// use TCP.
void is_watched(int fd) {
  Set* set = set_at(fd);
  if (set == nullptr) return;
  set_of[at(fd)].store(nullptr);
  const Hold hold(*set);
  for (std::uint32_t i = 0; i < set->count; ++i) wait_for_ever(set->entries[i].fd);
}

}  // namespace

std::uint64_t kick_data() { return reinterpret_cast<std::uintptr_t>(&kick_mark); }

void kick(int set) {
  const int fd = always_ready_descriptor();
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kick_data()}};
  if (next().epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) {
    next().epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
  }
}

bool is_ready_beyond(Socket& socket, const Entry& entry, std::uint64_t& seen) {
  if (!socket.is_switched()) return false;
  const auto look = socket.receiver().look();
  seen = look.seen;
  return is_to_report(look, entry);
}

bool is_ready(const Entry& entry) {
  if (!entry.wants_input()) return false;
  std::uint64_t seen = 0;
  if (const auto socket = SocketTable::find(entry.fd)) return is_ready_beyond(*socket, entry, seen);
  Set* inner = set_at(entry.fd);
  return inner != nullptr && is_ready_beyond(*inner, entry, seen);
}

bool is_ready_beyond(Set& inner, const Entry& entry, std::uint64_t& seen) {
  const Hold hold(inner);
  if (!any_is_ready(inner)) return false;
  seen = edges_of(inner);
  return (entry.events & EPOLLET) == 0 || seen != entry.seen;
}

Entry* entry_of(Set& set, const epoll_data_t& data) {
  if (has_number(data.fd)) {
    const std::uint32_t place = set.place[at(data.fd)];
    if (place != 0 && set.entries[place - 1].data.u64 == data.u64) return &set.entries[place - 1];
  }
  for (std::uint32_t i = 0; i < set.count; ++i) {
    if (set.entries[i].data.u64 == data.u64) return &set.entries[i];
  }
  return nullptr;
}

bool has_ready(Set& set) {
  const Hold hold(set);
  return any_is_ready(set);
}

bool enter(Set& set, bool always) {
  const Hold hold(set);
  for (std::uint32_t i = 0; i < set.count; ++i) {
    if (enter(set.entries[i], always)) continue;
    while (i > 0) leave(set.entries[--i].fd);
    return false;
  }
  ++set.sleepers;
  return true;
}

void leave(Set& set) {
  const Hold hold(set);
  --set.sleepers;
  for (std::uint32_t i = 0; i < set.count; ++i) leave(set.entries[i].fd);
  if (set.sleepers == 0 && set.descriptors.load() == 0) clear(set);
}

Set* set_at(int fd) { return has_number(fd) ? set_of[at(fd)].load() : nullptr; }
bool owns(int fd) { return fd >= 0 && fd == always_ready.load(std::memory_order_relaxed); }

void is_tracked(int fd, Socket& socket) {
  const std::uint8_t has = flags[at(fd)].load();
  if ((has & kWaitsForEver) != 0) waits::enter(socket);
  if ((has & kInSet) == 0) return;
  for (auto& place : sets) {
    Set* set = place.load();
    if (set == nullptr) continue;
    const Hold hold(*set);
    if (set->place[at(fd)] == 0) continue;
    for (std::uint32_t i = 0; i < set->sleepers; ++i) waits::enter(socket);
  }
}

void is_closed(int fd) {
  if (!has_number(fd)) return;
  if (flags[at(fd)].load() != 0) {
    if ((flags[at(fd)].exchange(0) & kInSet) != 0) {
      for (auto& place : sets) {
        Set* set = place.load();
        if (set == nullptr) continue;
        const Hold hold(*set);
        remove(*set, fd);
      }
    }
  }
  if (set_of[at(fd)].load() == nullptr) return;
  if (Set* set = set_of[at(fd)].exchange(nullptr)) {
    const Hold hold(*set);
    // A thread that sleeps for the set is still woken by its connections.
    if (set->descriptors.fetch_sub(1) == 1 && set->sleepers == 0) clear(*set);
  }
}

void is_copied(int from, int to) {
  Set* set = set_at(from);
  if (set == nullptr || !has_number(to)) return;
  set->descriptors.fetch_add(1);
  set_of[at(to)].store(set);
}

void after_fork_in_child() {
  for (auto& place : sets) {
    Set* set = place.load();
    if (set == nullptr) continue;
    set->lock.store(false);
    set->sleepers = 0;
  }
}

}  // namespace epolls
}  // namespace verbena::preload

using verbena::preload::next;
namespace epolls = verbena::preload::epolls;

VB_EXPORT int epoll_create1(int flags) noexcept {
  const int fd = next().epoll_create1(flags);
  epolls::add_set(fd);
  return fd;
}
VB_EXPORT int epoll_create(int size) noexcept {
  const int fd = next().epoll_create(size);
  epolls::add_set(fd);
  return fd;
}
VB_EXPORT int epoll_ctl(int fd, int operation, int target, epoll_event* event) noexcept {
  if (!epolls::has_number(target)) return next().epoll_ctl(fd, operation, target, event);
  epolls::Set* set = epolls::set_at(fd);
  if (set == nullptr) {
    if (operation == EPOLL_CTL_ADD) epolls::is_watched(target);
    if (operation != EPOLL_CTL_DEL) epolls::wait_for_ever(target);
    return next().epoll_ctl(fd, operation, target, event);
  }
  const epolls::Hold hold(*set);
  const int result = next().epoll_ctl(fd, operation, target, event);
  if (result != 0) return result;
  if (operation == EPOLL_CTL_DEL) {
    epolls::remove(*set, target);
  } else if (set->place[epolls::at(target)] != 0 || set->count < epolls::kEntriesMax) {
    epolls::change(fd, *set, target, *event);
  } else {
    epolls::wait_for_ever(target);
  }
  return result;
}
