#pragma once

#include <sched.h>
#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/epolls.h"
#include "stream/receiver.h"

// Declares the library's copy of an epoll set.  epolls.cc changes sets, and epoll_waits.cc waits
// for sets.
namespace verbena::preload::epolls {

inline constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM;
inline constexpr std::uint64_t kNothingReported = ~std::uint64_t{0};

struct Entry {
  int fd = -1;
  std::uint32_t events = 0;
  epoll_data_t data{};
  // For EPOLLET: RingStatus::tail or edges_of() at the last report, or when an edge was consumed.
  std::uint64_t last_reported = kNothingReported;
  std::uint64_t reported_at = 0;  // when the entry was reported last, in processor::ticks()
  bool is_armed = true;           // false after a report with EPOLLONESHOT

  bool requests_input() const { return (events & kInput) != 0; }
  bool is_armed_for_input() const { return is_armed && requests_input(); }
  bool is_one_shot() const { return (events & EPOLLONESHOT) != 0; }
};

// Holds the library's copy of one epoll set.  Each Set has its own pages, which are zero at first
// and are never unmapped.
struct Set {
  std::atomic<bool> lock;
  std::atomic<std::uint32_t> descriptor_count;  // 0 if the set is free
  std::uint32_t sleepers;  // threads that sleep for this set, or for a set that contains it
  std::uint32_t entry_count;
  std::uint32_t one_shot_count;   // entries with EPOLLONESHOT
  std::uint32_t next_scan_index;  // index of the entry where the next scan of the rings begins
  std::uint32_t change_count;     // times that epoll_ctl() has added or changed an entry
  std::uint64_t edges;            // see edges_of() in epolls.cc
  bool reported_kernel_last;      // see Wait::alternate()
  std::array<Entry, kEntriesMax> entries;
  // By descriptor: 1 + the index of its entry, or 0.
  std::array<std::uint32_t, kDescriptorsMax> entry_numbers;
};

inline bool is_in_range(int fd) { return fd >= 0 && fd < kDescriptorsMax; }
inline std::size_t index_of(int fd) { return static_cast<std::size_t>(fd); }

// Counts the sets that this thread has locked.  A signal handler may interrupt the thread and close
// a descriptor.  The handler must not wait for the locked sets, so it only adds the descriptor to
// `deferred_fds`.  When the thread has unlocked its last set, it removes these descriptors from all
// sets.
struct LockedSets {
  int count = 0;
  std::size_t deferred_count = 0;
  std::array<int, 64> deferred_fds{};

  // Defers the removal of a closed descriptor, and returns true.  Returns false if the thread has
  // locked no set.  If `deferred_fds` is full, the descriptor stays in its sets.
  bool defer_close(int fd) {
    if (count == 0) return false;
    if (deferred_count < deferred_fds.size()) deferred_fds[deferred_count++] = fd;
    return true;
  }
};
extern constinit thread_local LockedSets locked_sets;
// Removes the deferred descriptors from all sets.
void close_deferred();

// Locks a set.
class SetLock {
 public:
  explicit SetLock(Set& set) : set_(set) {
    ++locked_sets.count;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    while (set_.lock.exchange(true, std::memory_order_acquire)) ::sched_yield();
  }
  SetLock(const SetLock&) = delete;
  SetLock& operator=(const SetLock&) = delete;
  ~SetLock() {
    set_.lock.store(false, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (--locked_sets.count == 0 && locked_sets.deferred_count > 0) close_deferred();
  }

 private:
  Set& set_;
};

// Wakes one thread that sleeps in the kernel for the set, so that it checks the rings again.  If no
// thread sleeps, the next thread that would sleep is woken at once.  `set` is the set's descriptor.
void wake_one_sleeper(int set);
// Returns the epoll_data of the kernel's event after wake_one_sleeper().
std::uint64_t wake_data();

// ---- entries; REQUIRES: the caller has locked the set

// Returns true if the ring has bytes to report for the entry.  With EPOLLET, the ring's tail must
// also differ from the tail that was reported last.
inline bool has_bytes_to_report(const stream::Receiver::RingStatus& status, const Entry& entry) {
  return status.bytes > 0 && ((entry.events & EPOLLET) == 0 || status.tail != entry.last_reported);
}
// Returns true if `inner`, the set that `entry` refers to, has bytes in rings to report.  With
// EPOLLET and after an edge, it also returns true if the kernel has an event for `inner`.  Sets
// `edges` to edges_of(inner).
bool is_inner_ready(Set& inner, const Entry& entry, std::uint64_t& edges);
// Works as is_inner_ready(), for a wait.  If the inner set is not ready, the entry's earlier edges
// are consumed: they have no effect on later waits, as in the kernel.
bool test_inner_and_consume_edge(Set& inner, Entry& entry, std::uint64_t& edges);
// Returns true if an entry that waits for input has bytes in a ring to report.
bool is_ready(const Entry& entry);
// Finds the entry to which an event of the kernel belongs.  Returns nullptr if the entry was
// removed.
Entry* entry_of(Set& set, epoll_data_t data);
// Finds an entry with EPOLLONESHOT that was not reported since it was armed, for programs that give
// several entries the same data.
Entry* armed_entry_of(Set& set, epoll_data_t data);

}  // namespace verbena::preload::epolls
