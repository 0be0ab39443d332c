#pragma once

#include <sched.h>
#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/epolls.h"
#include "stream/receiver.h"

// Declares the library's copy of an epoll set, for the functions that change sets and those that
// wait for sets.
namespace verbena::preload::epolls {

inline constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM;
inline constexpr std::uint64_t kNothingReported = ~std::uint64_t{0};

struct Entry {
  int fd = -1;
  std::uint32_t events = 0;
  epoll_data_t data{};
  std::uint64_t last_reported = kNothingReported;  // for EPOLLET: Look::tail or edges_of()
  std::uint64_t reported_at = 0;  // when the entry was reported last, in processor::ticks()
  bool is_armed = true;           // false after a report with EPOLLONESHOT

  bool asks_for_input() const { return (events & kInput) != 0; }
  bool wants_input() const { return is_armed && asks_for_input(); }
  bool is_one_shot() const { return (events & EPOLLONESHOT) != 0; }
};

// Holds the copy of one epoll set, in pages of its own.  The pages begin as zeros, and are never
// unmapped.
struct Set {
  std::atomic<bool> lock;
  std::atomic<std::uint32_t> descriptor_count;  // 0 if the set is free
  std::uint32_t sleepers;  // threads that sleep for this set, or for a set that contains it
  std::uint32_t entry_count;
  std::uint32_t one_shot_count;  // entries with EPOLLONESHOT
  std::uint32_t next_look;       // the entry with which the next look at the rings begins
  std::uint32_t changes;         // times that epoll_ctl() has added or changed an entry
  std::uint64_t edges;           // for EPOLLET in a set that contains this one, see edges_of()
  bool was_kernels_turn;         // see Wait::take_turns()
  std::array<Entry, kEntriesMax> entries;
  std::array<std::uint32_t, kDescriptorsMax> place;  // 1 + index of a descriptor's entry, or 0
};

inline bool is_in_range(int fd) { return fd >= 0 && fd < kDescriptorsMax; }
inline std::size_t at(int fd) { return static_cast<std::size_t>(fd); }

// Counts the sets that this thread holds.  A signal handler may interrupt the thread and close a
// descriptor.  The handler must not wait for the held sets, so it only notes the descriptor here.
// The thread removes the noted descriptors from all sets as soon as it holds no set.
struct HeldSets {
  int count = 0;
  std::size_t closed_count = 0;
  std::array<int, 64> closed{};

  // Notes the descriptor, and returns true.  Returns false if the thread holds no set.  If there is
  // no room for a note, the descriptor stays in its sets.
  bool note_closed(int fd) {
    if (count == 0) return false;
    if (closed_count < closed.size()) closed[closed_count++] = fd;
    return true;
  }
};
extern constinit thread_local HeldSets held_sets;
// Removes the noted descriptors from all sets.
void remove_noted();

// Locks a set.
class Hold {
 public:
  explicit Hold(Set& set) : set_(set) {
    ++held_sets.count;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    while (set_.lock.exchange(true, std::memory_order_acquire)) ::sched_yield();
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    set_.lock.store(false, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (--held_sets.count == 0 && held_sets.closed_count > 0) remove_noted();
  }

 private:
  Set& set_;
};

// Wakes one thread that sleeps for the set in the kernel, so that it looks at the rings again.  If
// none sleeps, the next thread that would sleep looks again.  `set` is the set's descriptor.
void kick(int set);
// Returns the value that the kernel reports for such a wake, in place of a program's epoll_data.
std::uint64_t kick_data();

// ---- entries; the caller holds the set

// Returns true if the ring has bytes to report for the entry.  With EPOLLET it compares the
// position in the ring with the one that was reported last.
inline bool has_bytes_to_report(const stream::Receiver::Look& look, const Entry& entry) {
  return look.bytes > 0 && ((entry.events & EPOLLET) == 0 || look.tail != entry.last_reported);
}
// Returns true if `inner`, the set that `entry` refers to, has bytes in rings to report.  With
// EPOLLET and after an edge, it also returns true if the kernel has something to report for
// `inner`. Sets `edges` to edges_of(inner).
bool is_inner_ready(Set& inner, const Entry& entry, std::uint64_t& edges);
// Works as is_inner_ready(), for a wait.  If the inner set is not ready, its earlier edges have no
// effect on later waits, as in the kernel.
bool is_inner_ready_else_drop_edge(Set& inner, Entry& entry, std::uint64_t& edges);
// Returns true if an entry that waits for input has bytes in a ring to report.
bool is_ready(const Entry& entry);
// Finds the entry that an event of the kernel is for.  Returns nullptr if it was removed.
Entry* entry_of(Set& set, const epoll_data_t& data);
// Finds an entry with EPOLLONESHOT that was not reported since it was armed, for programs that give
// several entries the same data.
Entry* armed_entry_of(Set& set, const epoll_data_t& data);

}  // namespace verbena::preload::epolls
