#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <utility>

#include "os/system_call.h"
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
  kInSet = 1,      // the descriptor has an entry in at least one set
  kTcpOnly = 2,    // the descriptor is in a set for which only the kernel can wake threads
  kOwnSet = 4,     // the descriptor is a set that this process has created
  kContinued = 8,  // the descriptor is a connection that on_continued() has reported
};

constinit std::array<std::atomic<Set*>, kSetsMax> sets{};
constinit ZeroedArray<std::atomic<Set*>, kDescriptorsMax> set_of{};
constinit ZeroedArray<std::atomic<std::uint8_t>, kDescriptorsMax> flags{};
// True after on_continued(), until the first wait for a set that may be inherited.
constinit std::atomic<bool> has_continued{false};
constinit std::atomic<int> highest_known{-1};  // the highest descriptor used in set_of and flags

void update_highest(int fd) {
  int before = highest_known.load(std::memory_order_relaxed);
  while (before < fd && !highest_known.compare_exchange_weak(before, fd)) {
  }
}

void assign(int fd, Set* set) {
  update_highest(fd);
  set_of[index_of(fd)].store(set);
}

std::uint8_t set_flag(int fd, Flag flag) {
  update_highest(fd);
  return flags[index_of(fd)].fetch_or(flag);
}

// ---- waking

// wake_one_sleeper() adds this descriptor to a set, to wake a thread that sleeps for the set in the
// kernel.  The descriptor can always be read.
constinit std::atomic<int> always_ready{-1};
constinit char wake_mark = 0;  // its address is wake_data()

int always_ready_descriptor() {
  int fd = always_ready.load();
  if (fd >= 0) return fd;
  const int new_fd = own_descriptors::move_away(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (new_fd < 0 || always_ready.compare_exchange_strong(fd, new_fd)) return new_fd;
  next().close(new_fd);
  return fd;
}

// ---- entries; REQUIRES: the caller has locked the set

// Begins a sleep of one thread for an entry.  Returns false if the ring has bytes to report, unless
// `even_if_ready` is set.  With EPOLLET, and for entries that were reported with EPOLLONESHOT, a
// thread may sleep although the ring has bytes, because they were reported before.  An entry that
// does not request input needs no sleep: bytes in its ring need not wake a thread, so the peer may
// go on using the ring.
bool begin_sleep(const Entry& entry, bool even_if_ready) {
  if (!entry.requests_input()) return true;
  even_if_ready |= !entry.is_armed_for_input();
  if (const auto socket = SocketTable::find(entry.fd)) {
    if (!even_if_ready) {
      const std::uint64_t known =
          (entry.events & EPOLLET) != 0 ? entry.last_reported : kNothingReported;
      return waits::begin_sleep_with_known_bytes(*socket, known);
    }
    waits::begin_sleep_always(*socket);
    return true;
  }
  Set* inner = find_set(entry.fd);
  if (inner == nullptr) return true;
  if (even_if_ready || (entry.events & EPOLLET) == 0) return begin_sleep(*inner, even_if_ready);
  // After begin_sleep(), no bytes enter the rings of the inner set, so that is_ready() misses no
  // edge.
  begin_sleep(*inner, true);
  if (!is_ready(entry)) return true;
  end_sleep(*inner);
  return false;
}

void end_sleep(const Entry& entry) {
  if (!entry.requests_input()) return;
  if (const auto socket = SocketTable::find(entry.fd)) return waits::end_sleep(*socket);
  if (Set* inner = find_set(entry.fd)) end_sleep(*inner);
}

std::uint64_t edges_of(const Entry& entry);

// Returns a number that changes with each edge of the set, for EPOLLET in a set that contains it.
// An edge happens when bytes enter a ring, or when epoll_ctl() makes an entry ready.  Set::edges
// counts the second kind.  When an entry is added, changed or removed, Set::edges is corrected by
// the difference, so that the sum stays the same.
std::uint64_t edges_of(const Set& set) {
  std::uint64_t sum = set.edges;
  for (std::uint32_t i = 0; i < set.entry_count; ++i) sum += edges_of(set.entries[i]);
  return sum;
}

bool any_is_ready(const Set& set) {
  for (std::uint32_t i = 0; i < set.entry_count; ++i) {
    if (is_ready(set.entries[i])) return true;
  }
  return false;
}

// Returns a number that grows with each byte that enters a ring of the entry.
std::uint64_t edges_of(const Entry& entry) {
  if (!entry.requests_input()) return 0;
  if (const auto socket = SocketTable::find(entry.fd)) {
    return socket->uses_stream() ? socket->receiver().ring_status().tail : 0;
  }
  Set* inner = find_set(entry.fd);
  if (inner == nullptr) return 0;
  const SetLock lock(*inner);
  return edges_of(*inner);
}

void remove(Set& set, int fd) {
  const std::uint32_t number = set.entry_numbers[index_of(fd)];
  if (number == 0) return;
  set.edges += edges_of(set.entries[number - 1]);
  for (std::uint32_t i = 0; i < set.sleepers; ++i) end_sleep(set.entries[number - 1]);
  if (set.entries[number - 1].is_one_shot()) --set.one_shot_count;
  set.entries[number - 1] = set.entries[--set.entry_count];
  set.entry_numbers[index_of(set.entries[number - 1].fd)] = number;
  set.entry_numbers[index_of(fd)] = 0;
}

void clear(Set& set) {
  while (set.entry_count > 0) remove(set, set.entries[set.entry_count - 1].fd);
}

// Adds or changes an entry of the set whose descriptor is `set_fd`.
void change(int set_fd, Set& set, int fd, const epoll_event& event) {
  ++set.change_count;
  std::uint32_t& number = set.entry_numbers[index_of(fd)];
  const bool is_new = number == 0;
  if (is_new) {
    number = ++set.entry_count;
    set.entries[number - 1] = {};
    set_flag(fd, kInSet);
  } else if (set.entries[number - 1].is_one_shot()) {
    --set.one_shot_count;
  }
  Entry& entry = set.entries[number - 1];
  const bool was_ready = !is_new && is_ready(entry);
  const Entry before = entry;
  set.edges += edges_of(entry);
  entry = {.fd = fd, .events = event.events, .data = event.data};
  // As in the kernel, this change is an edge if it makes the entry ready.
  Set* inner = find_set(fd);
  std::uint64_t edges = 0;
  const bool is_ready_now = inner != nullptr && entry.is_armed_for_input()
                                ? test_inner_and_consume_edge(*inner, entry, edges)
                                : is_ready(entry);
  set.edges += (!was_ready && is_ready_now ? 1 : 0) - edges_of(entry);
  if (entry.is_one_shot()) ++set.one_shot_count;
  if (is_new || before.requests_input() != entry.requests_input()) {
    for (std::uint32_t i = 0; i < set.sleepers; ++i) {
      if (!is_new) end_sleep(before);
      begin_sleep(entry, true);
    }
  }
  if (set.sleepers > 0 && is_ready(entry)) wake_one_sleeper(set_fd);
}

// ---- sets

// Returns true if the descriptor is an epoll set.  Returns false also if /proc is not mounted.
bool is_epoll_set(int fd) {
  std::array<char, 32> path{};
  std::array<char, 32> target{};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
  const long bytes = os::system_call(SYS_readlink, path.data(), target.data(), target.size());
  return bytes > 0 && std::string_view(target.data(), static_cast<std::size_t>(bytes)) ==
                          "anon_inode:[eventpoll]";
}

void add_set(int fd) {
  if (!is_in_range(fd)) return;
  set_flag(fd, kOwnSet);
  // Without the descriptor that wakes sleeping threads, the connections in the set must stay on
  // TCP.
  if (always_ready_descriptor() < 0) return;
  for (auto& slot : sets) {
    Set* set = slot.load();
    if (set == nullptr) {
      void* memory = ::mmap(nullptr, sizeof(Set), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) return;
      Set* new_set = static_cast<Set*>(memory);
      if (!slot.compare_exchange_strong(set, new_set)) {
        ::munmap(memory, sizeof(Set));
      } else {
        set = new_set;
      }
    }
    std::uint32_t none = 0;
    if (!set->descriptor_count.compare_exchange_strong(none, 1)) continue;
    const SetLock lock(*set);
    if (set->sleepers > 0) {
      set->descriptor_count.store(0);
      continue;
    }
    clear(*set);
    return assign(fd, set);
  }
}

// Makes all later bytes of the connection come by TCP.  If the ring has unread bytes already,
// resets the connection: no wait could report these bytes, so the program would wait for ever.
void receive_by_tcp_only(int fd) {
  if ((set_flag(fd, kTcpOnly) & kTcpOnly) != 0) return;
  const auto socket = SocketTable::find(fd);
  while (socket && !waits::begin_sleep(*socket)) {
    if (socket->receiver().ring_status().bytes == 0) continue;
    return leaving::reset(fd);
  }
}

// Makes all later bytes of the connections in a set come by TCP, because this set is in a set that
// the library does not know.
void use_tcp_in_set(int fd) {
  Set* set = find_set(fd);
  if (set == nullptr) return;
  set_of[index_of(fd)].store(nullptr);
  const SetLock lock(*set);
  for (std::uint32_t i = 0; i < set->entry_count; ++i) receive_by_tcp_only(set->entries[i].fd);
}

}  // namespace

constinit thread_local LockedSets locked_sets{};

void close_deferred() {
  while (locked_sets.deferred_count > 0)
    on_close(locked_sets.deferred_fds[--locked_sets.deferred_count]);
}

std::uint64_t wake_data() { return reinterpret_cast<std::uintptr_t>(&wake_mark); }

void wake_one_sleeper(int set) {
  const int fd = always_ready.load();
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = wake_data()}};
  if (next().epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) {
    next().epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
  }
}

bool is_ready(const Entry& entry) {
  if (!entry.is_armed_for_input()) return false;
  if (const auto socket = SocketTable::find(entry.fd)) {
    return socket->uses_stream() && has_bytes_to_report(socket->receiver().ring_status(), entry);
  }
  std::uint64_t edges = 0;
  Set* inner = find_set(entry.fd);
  return inner != nullptr && is_inner_ready(*inner, entry, edges);
}

bool is_inner_ready(Set& inner, const Entry& entry, std::uint64_t& edges) {
  const bool has_edges = (entry.events & EPOLLET) != 0;
  {
    const SetLock lock(inner);
    // Bytes may enter a ring at any moment, so this function counts the edges before it checks the
    // rings.
    edges = edges_of(inner);
    if (any_is_ready(inner)) return !has_edges || edges != entry.last_reported;
    if (!has_edges || edges == entry.last_reported) return false;
  }
  // After an edge, the kernel reports the inner set if any of its entries is ready at the time of
  // the wait, even if the program has read the bytes that caused the edge.
  pollfd one{.fd = entry.fd, .events = POLLIN, .revents = 0};
  const timespec at_once{};
  // epoll_ctl() may call this function, and must be no cancellation point.
  return os::system_call(SYS_ppoll, &one, 1, &at_once, nullptr, 0) > 0;
}

bool test_inner_and_consume_edge(Set& inner, Entry& entry, std::uint64_t& edges) {
  if (is_inner_ready(inner, entry, edges)) return true;
  if ((entry.events & EPOLLET) != 0) entry.last_reported = edges;
  return false;
}

Entry* entry_of(Set& set, epoll_data_t data) {
  if (is_in_range(data.fd)) {
    const std::uint32_t number = set.entry_numbers[index_of(data.fd)];
    if (number != 0 && set.entries[number - 1].data.u64 == data.u64) {
      return &set.entries[number - 1];
    }
  }
  for (std::uint32_t i = 0; i < set.entry_count; ++i) {
    if (set.entries[i].data.u64 == data.u64) return &set.entries[i];
  }
  return nullptr;
}

Entry* armed_entry_of(Set& set, epoll_data_t data) {
  for (std::uint32_t i = 0; i < set.entry_count; ++i) {
    Entry& entry = set.entries[i];
    if (entry.data.u64 == data.u64 && entry.is_one_shot() && entry.is_armed) return &entry;
  }
  return nullptr;
}

bool has_ready_entry(Set& set) {
  const SetLock lock(set);
  return any_is_ready(set);
}

bool begin_sleep(Set& set, bool even_if_ready) {
  const SetLock lock(set);
  for (std::uint32_t i = 0; i < set.entry_count; ++i) {
    if (begin_sleep(set.entries[i], even_if_ready)) continue;
    while (i > 0) end_sleep(set.entries[--i]);
    return false;
  }
  ++set.sleepers;
  return true;
}

void end_sleep(Set& set) {
  const SetLock lock(set);
  --set.sleepers;
  for (std::uint32_t i = 0; i < set.entry_count; ++i) end_sleep(set.entries[i]);
  if (set.sleepers == 0 && set.descriptor_count.load() == 0) clear(set);
}

Set* find_set(int fd) { return is_in_range(fd) ? set_of[index_of(fd)].load() : nullptr; }
int highest_descriptor() { return highest_known.load(std::memory_order_relaxed); }
bool owns(int fd) { return fd >= 0 && fd == always_ready.load(std::memory_order_relaxed); }

void on_tracked(int fd, Socket& socket) {
  const std::uint8_t own_flags = flags[index_of(fd)].load();
  if ((own_flags & kTcpOnly) != 0) waits::begin_sleep(socket);
  if ((own_flags & kInSet) == 0) return;
  for (auto& slot : sets) {
    Set* set = slot.load();
    if (set == nullptr) continue;
    const SetLock lock(*set);
    const std::uint32_t number = set->entry_numbers[index_of(fd)];
    if (number == 0 || !set->entries[number - 1].requests_input()) continue;
    for (std::uint32_t i = 0; i < set->sleepers; ++i) waits::begin_sleep(socket);
  }
}

void on_continued(int fd) {
  if (!is_in_range(fd)) return;
  set_flag(fd, kContinued);
  has_continued.store(true);
}

void before_wait_for_unknown_set(int fd) {
  if (!has_continued.load(std::memory_order_relaxed) || !is_in_range(fd)) return;
  if ((flags[index_of(fd)].load() & kOwnSet) != 0 || !is_epoll_set(fd)) return;
  if (!has_continued.exchange(false)) return;
  SocketTable::for_each_descriptor(0, kDescriptorsMax - 1, [](int connection) {
    if ((flags[index_of(connection)].load() & kContinued) != 0) receive_by_tcp_only(connection);
  });
}

void on_close(int fd) {
  if (!is_in_range(fd)) return;
  const bool is_known = flags[index_of(fd)].load() != 0 || set_of[index_of(fd)].load() != nullptr;
  if (!is_known || locked_sets.defer_close(fd)) return;
  if (flags[index_of(fd)].load() != 0) {
    if ((flags[index_of(fd)].exchange(0) & kInSet) != 0) {
      for (auto& slot : sets) {
        Set* set = slot.load();
        if (set == nullptr) continue;
        const SetLock lock(*set);
        remove(*set, fd);
      }
    }
  }
  if (set_of[index_of(fd)].load() == nullptr) return;
  if (Set* set = set_of[index_of(fd)].exchange(nullptr)) {
    const SetLock lock(*set);
    // While threads sleep for the set, its connections must still be able to wake them.
    if (set->descriptor_count.fetch_sub(1) == 1 && set->sleepers == 0) clear(*set);
  }
}

void on_copy(int from, int to) {
  if (!is_in_range(from) || !is_in_range(to)) return;
  if ((flags[index_of(from)].load() & kOwnSet) != 0) set_flag(to, kOwnSet);
  Set* set = find_set(from);
  if (set == nullptr) return;
  set->descriptor_count.fetch_add(1);
  assign(to, set);
}

void after_fork_in_child() {
  for (auto& slot : sets) {
    Set* set = slot.load();
    if (set == nullptr) continue;
    set->lock.store(false);
    set->sleepers = 0;
  }
  SocketTable::for_each(0, kDescriptorsMax - 1, [](int fd, Socket& socket) {
    if ((flags[index_of(fd)].load() & kTcpOnly) != 0 && !socket.uses_stream())
      waits::begin_sleep(socket);
  });
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
  if (!epolls::is_in_range(target)) return next().epoll_ctl(fd, operation, target, event);
  epolls::Set* set = epolls::find_set(fd);
  if (set == nullptr) {
    const int result = next().epoll_ctl(fd, operation, target, event);
    if (result == 0 && operation == EPOLL_CTL_ADD) epolls::use_tcp_in_set(target);
    if (result == 0 && operation != EPOLL_CTL_DEL) epolls::receive_by_tcp_only(target);
    return result;
  }
  const epolls::SetLock lock(*set);
  const int result = next().epoll_ctl(fd, operation, target, event);
  if (result != 0) return result;
  if (operation == EPOLL_CTL_DEL) {
    epolls::remove(*set, target);
  } else if (set->entry_numbers[epolls::index_of(target)] != 0 ||
             set->entry_count < epolls::kEntriesMax) {
    epolls::change(fd, *set, target, *event);
  } else {
    epolls::receive_by_tcp_only(target);
  }
  return result;
}
