#include <errno.h>
#include <poll.h>
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
  kInSet = 1,    // the descriptor has an entry in at least one set
  kTcpOnly = 2,  // the descriptor is in a set that can report only bytes of TCP
};

constinit std::array<std::atomic<Set*>, kSetsMax> sets{};
constinit ZeroedArray<std::atomic<Set*>, kDescriptorsMax> set_of{};
constinit ZeroedArray<std::atomic<std::uint8_t>, kDescriptorsMax> flags{};
constinit std::atomic<int> highest_known{-1};  // the highest descriptor in set_of and flags

void note_descriptor(int fd) {
  int before = highest_known.load(std::memory_order_relaxed);
  while (before < fd && !highest_known.compare_exchange_weak(before, fd)) {
  }
}

void assign(int fd, Set* set) {
  note_descriptor(fd);
  set_of[at(fd)].store(set);
}

std::uint8_t set_flag(int fd, Flag flag) {
  note_descriptor(fd);
  return flags[at(fd)].fetch_or(flag);
}

// ---- waking

// kick() adds this descriptor to a set, to wake a thread that sleeps for the set in the kernel.
// The descriptor can always be read.
constinit std::atomic<int> always_ready{-1};
constinit char kick_mark = 0;  // its address is kick_data()

int always_ready_descriptor() {
  int fd = always_ready.load();
  if (fd >= 0) return fd;
  const int new_fd = own_descriptors::move_away(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (new_fd < 0 || always_ready.compare_exchange_strong(fd, new_fd)) return new_fd;
  next().close(new_fd);
  return fd;
}

// ---- entries; the caller holds the set

// Begins a sleep of one thread for an entry.  Returns false, unless `always` is set, if the ring
// has bytes to report.  For EPOLLET, and for entries that were reported with EPOLLONESHOT, a thread
// may sleep while bytes that were reported before lie in the ring.  Nothing that comes into the
// ring wakes a thread for an entry without input, so its peer may go on using the ring.
bool begin_sleep(const Entry& entry, bool always) {
  if (!entry.asks_for_input()) return true;
  always |= !entry.wants_input();
  if (const auto socket = SocketTable::find(entry.fd)) {
    if (!always) {
      const std::uint64_t known =
          (entry.events & EPOLLET) != 0 ? entry.last_reported : kNothingReported;
      return waits::begin_sleep_beyond(*socket, known);
    }
    waits::begin_sleep_always(*socket);
    return true;
  }
  Set* inner = set_at(entry.fd);
  if (inner == nullptr) return true;
  if (always || (entry.events & EPOLLET) == 0) return begin_sleep(*inner, always);
  // After begin_sleep(), no bytes enter the rings of the inner set.  So is_ready() cannot miss an
  // edge.
  begin_sleep(*inner, true);
  if (!is_ready(entry)) return true;
  end_sleep(*inner);
  return false;
}

void end_sleep(const Entry& entry) {
  if (!entry.asks_for_input()) return;
  if (const auto socket = SocketTable::find(entry.fd)) return waits::end_sleep(*socket);
  if (Set* inner = set_at(entry.fd)) end_sleep(*inner);
}

std::uint64_t edges_of(const Entry& entry);

// Returns a number that changes with each edge of the set, for EPOLLET in a set that contains it.
// An edge happens when bytes come into a ring, or when epoll_ctl() makes an entry ready.
// Set::edges counts the second kind.  Set::edges also makes up for entries that come, change or go,
// so that the sum does not change with them.
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

// Returns a number that grows with each byte that comes into a ring of the entry.
std::uint64_t edges_of(const Entry& entry) {
  if (!entry.asks_for_input()) return 0;
  if (const auto socket = SocketTable::find(entry.fd)) {
    return socket->is_switched() ? socket->receiver().look().tail : 0;
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
  for (std::uint32_t i = 0; i < set.sleepers; ++i) end_sleep(set.entries[place - 1]);
  if (set.entries[place - 1].is_one_shot()) --set.one_shot_count;
  set.entries[place - 1] = set.entries[--set.entry_count];
  set.place[at(set.entries[place - 1].fd)] = place;
  set.place[at(fd)] = 0;
}

void clear(Set& set) {
  while (set.entry_count > 0) remove(set, set.entries[set.entry_count - 1].fd);
}

// Adds or changes an entry of the set whose descriptor is `set_fd`.
void change(int set_fd, Set& set, int fd, const epoll_event& event) {
  ++set.changes;
  std::uint32_t& place = set.place[at(fd)];
  const bool is_new = place == 0;
  if (is_new) {
    place = ++set.entry_count;
    set.entries[place - 1] = {};
    set_flag(fd, kInSet);
  } else if (set.entries[place - 1].is_one_shot()) {
    --set.one_shot_count;
  }
  Entry& entry = set.entries[place - 1];
  const bool was_ready = !is_new && is_ready(entry);
  const Entry before = entry;
  set.edges += edges_of(entry);
  entry = {.fd = fd, .events = event.events, .data = event.data};
  // As in the kernel, this call makes an edge if the entry becomes ready by it.
  Set* inner = set_at(fd);
  std::uint64_t edges = 0;
  const bool is_ready_now = inner != nullptr && entry.wants_input()
                                ? is_inner_ready_else_drop_edge(*inner, entry, edges)
                                : is_ready(entry);
  set.edges += (!was_ready && is_ready_now ? 1 : 0) - edges_of(entry);
  if (entry.is_one_shot()) ++set.one_shot_count;
  if (is_new || before.asks_for_input() != entry.asks_for_input()) {
    for (std::uint32_t i = 0; i < set.sleepers; ++i) {
      if (!is_new) end_sleep(before);
      begin_sleep(entry, true);
    }
  }
  if (set.sleepers > 0 && is_ready(entry)) kick(set_fd);
}

// ---- sets

void add_set(int fd) {
  // Without the descriptor that wakes sleeping threads, connections in the set stay on TCP.
  if (!is_in_range(fd) || always_ready_descriptor() < 0) return;
  for (auto& place : sets) {
    Set* set = place.load();
    if (set == nullptr) {
      void* memory = ::mmap(nullptr, sizeof(Set), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) return;
      Set* new_set = static_cast<Set*>(memory);
      if (!place.compare_exchange_strong(set, new_set)) {
        ::munmap(memory, sizeof(Set));
      } else {
        set = new_set;
      }
    }
    std::uint32_t none = 0;
    if (!set->descriptor_count.compare_exchange_strong(none, 1)) continue;
    const Hold hold(*set);
    if (set->sleepers > 0) {
      set->descriptor_count.store(0);
      continue;
    }
    clear(*set);
    return assign(fd, set);
  }
}

// Makes all bytes of the connection come by TCP from now on.  If bytes are in the ring already,
// resets the connection: nobody could report these bytes, and the program would wait for ever.
void receive_by_tcp_only(int fd) {
  if ((set_flag(fd, kTcpOnly) & kTcpOnly) != 0) return;
  const auto socket = SocketTable::find(fd);
  while (socket && !waits::begin_sleep(*socket)) {
    if (socket->receiver().look().bytes == 0) continue;
    return leaving::reset(fd);
  }
}

// Makes the connections in a set use TCP, because the program waits for the set in a way that this
// library does not see.
void use_tcp_in_set(int fd) {
  Set* set = set_at(fd);
  if (set == nullptr) return;
  set_of[at(fd)].store(nullptr);
  const Hold hold(*set);
  for (std::uint32_t i = 0; i < set->entry_count; ++i) receive_by_tcp_only(set->entries[i].fd);
}

}  // namespace

constinit thread_local HeldSets held_sets{};

void remove_noted() {
  while (held_sets.closed_count > 0) on_close(held_sets.closed[--held_sets.closed_count]);
}

std::uint64_t kick_data() { return reinterpret_cast<std::uintptr_t>(&kick_mark); }

void kick(int set) {
  const int fd = always_ready.load();
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kick_data()}};
  if (next().epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) {
    next().epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
  }
}

bool is_ready(const Entry& entry) {
  if (!entry.wants_input()) return false;
  if (const auto socket = SocketTable::find(entry.fd)) {
    return socket->is_switched() && has_bytes_to_report(socket->receiver().look(), entry);
  }
  std::uint64_t edges = 0;
  Set* inner = set_at(entry.fd);
  return inner != nullptr && is_inner_ready(*inner, entry, edges);
}

bool is_inner_ready(Set& inner, const Entry& entry, std::uint64_t& edges) {
  const bool has_edges = (entry.events & EPOLLET) != 0;
  {
    const Hold hold(inner);
    // Bytes may come at any moment, so the edges are counted before the rings are looked at.
    edges = edges_of(inner);
    if (any_is_ready(inner)) return !has_edges || edges != entry.last_reported;
    if (!has_edges || edges == entry.last_reported) return false;
  }
  // After an edge, the kernel reports the inner set for whatever is ready at the time of the wait,
  // even if the bytes that made the edge have been read.
  pollfd one{.fd = entry.fd, .events = POLLIN, .revents = 0};
  const timespec at_once{};
  return next().ppoll(&one, 1, &at_once, nullptr) > 0;
}

bool is_inner_ready_else_drop_edge(Set& inner, Entry& entry, std::uint64_t& edges) {
  if (is_inner_ready(inner, entry, edges)) return true;
  if ((entry.events & EPOLLET) != 0) entry.last_reported = edges;
  return false;
}

Entry* entry_of(Set& set, const epoll_data_t& data) {
  if (is_in_range(data.fd)) {
    const std::uint32_t place = set.place[at(data.fd)];
    if (place != 0 && set.entries[place - 1].data.u64 == data.u64) return &set.entries[place - 1];
  }
  for (std::uint32_t i = 0; i < set.entry_count; ++i) {
    if (set.entries[i].data.u64 == data.u64) return &set.entries[i];
  }
  return nullptr;
}

Entry* armed_entry_of(Set& set, const epoll_data_t& data) {
  for (std::uint32_t i = 0; i < set.entry_count; ++i) {
    Entry& entry = set.entries[i];
    if (entry.data.u64 == data.u64 && entry.is_one_shot() && entry.is_armed) return &entry;
  }
  return nullptr;
}

bool has_ready(Set& set) {
  const Hold hold(set);
  return any_is_ready(set);
}

bool begin_sleep(Set& set, bool always) {
  const Hold hold(set);
  for (std::uint32_t i = 0; i < set.entry_count; ++i) {
    if (begin_sleep(set.entries[i], always)) continue;
    while (i > 0) end_sleep(set.entries[--i]);
    return false;
  }
  ++set.sleepers;
  return true;
}

void end_sleep(Set& set) {
  const Hold hold(set);
  --set.sleepers;
  for (std::uint32_t i = 0; i < set.entry_count; ++i) end_sleep(set.entries[i]);
  if (set.sleepers == 0 && set.descriptor_count.load() == 0) clear(set);
}

Set* set_at(int fd) { return is_in_range(fd) ? set_of[at(fd)].load() : nullptr; }
int highest_descriptor() { return highest_known.load(std::memory_order_relaxed); }
bool owns(int fd) { return fd >= 0 && fd == always_ready.load(std::memory_order_relaxed); }

void on_track(int fd, Socket& socket) {
  const std::uint8_t own_flags = flags[at(fd)].load();
  if ((own_flags & kTcpOnly) != 0) waits::begin_sleep(socket);
  if ((own_flags & kInSet) == 0) return;
  for (auto& place : sets) {
    Set* set = place.load();
    if (set == nullptr) continue;
    const Hold hold(*set);
    const std::uint32_t place_in_set = set->place[at(fd)];
    if (place_in_set == 0 || !set->entries[place_in_set - 1].asks_for_input()) continue;
    for (std::uint32_t i = 0; i < set->sleepers; ++i) waits::begin_sleep(socket);
  }
}

void on_close(int fd) {
  if (!is_in_range(fd)) return;
  const bool is_known = flags[at(fd)].load() != 0 || set_of[at(fd)].load() != nullptr;
  if (!is_known || held_sets.note_closed(fd)) return;
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
    // If threads sleep for the set, its connections must still wake them.
    if (set->descriptor_count.fetch_sub(1) == 1 && set->sleepers == 0) clear(*set);
  }
}

void on_copy(int from, int to) {
  Set* set = set_at(from);
  if (set == nullptr || !is_in_range(to)) return;
  set->descriptor_count.fetch_add(1);
  assign(to, set);
}

void after_fork_in_child() {
  for (auto& place : sets) {
    Set* set = place.load();
    if (set == nullptr) continue;
    set->lock.store(false);
    set->sleepers = 0;
  }
  SocketTable::for_each(0, kDescriptorsMax - 1, [](int fd, Socket& socket) {
    if ((flags[at(fd)].load() & kTcpOnly) != 0 && !socket.is_switched()) waits::begin_sleep(socket);
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
  epolls::Set* set = epolls::set_at(fd);
  if (set == nullptr) {
    const int result = next().epoll_ctl(fd, operation, target, event);
    if (result == 0 && operation == EPOLL_CTL_ADD) epolls::use_tcp_in_set(target);
    if (result == 0 && operation != EPOLL_CTL_DEL) epolls::receive_by_tcp_only(target);
    return result;
  }
  const epolls::Hold hold(*set);
  const int result = next().epoll_ctl(fd, operation, target, event);
  if (result != 0) return result;
  if (operation == EPOLL_CTL_DEL) {
    epolls::remove(*set, target);
  } else if (set->place[epolls::at(target)] != 0 || set->entry_count < epolls::kEntriesMax) {
    epolls::change(fd, *set, target, *event);
  } else {
    epolls::receive_by_tcp_only(target);
  }
  return result;
}
