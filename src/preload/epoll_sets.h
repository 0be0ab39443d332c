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
inline constexpr std::uint64_t kNothingSeen = ~std::uint64_t{0};

struct Entry {
  int fd = -1;
  std::uint32_t events = 0;
  epoll_data_t data{};
  std::uint64_t seen = kNothingSeen;  // EPOLLET: what was reported last, see is_ready_beyond()
  std::uint64_t reported_at = 0;      // when its ring was reported last, in processor::ticks()
  bool is_armed = true;               // EPOLLONESHOT: nothing was reported since it was set

  bool wants_input() const { return is_armed && (events & kInput) != 0; }
  bool is_one_shot() const { return (events & EPOLLONESHOT) != 0; }
};

// Holds the copy of one epoll set, in pages of its own.  They begin as zeros, and are never
// unmapped.
struct Set {
  std::atomic<bool> lock;
  std::atomic<std::uint32_t> descriptors;
  std::uint32_t sleepers;  // threads that sleep for it, or for a set that it is in
  std::uint32_t count;
  std::uint32_t one_shots;        // entries with EPOLLONESHOT
  std::uint32_t first_looked_at;  // the entry with which the next look at the rings begins
  std::uint64_t edges;            // for EPOLLET in a set around it, see edges_of() in epolls.cc
  bool kernels_turn;  // to be reported, where a wait has room for one event; else it is the rings'
  std::array<Entry, kEntriesMax> entries;
  std::array<std::uint32_t, kDescriptorsMax> place;  // of a descriptor's entry, + 1
};

inline bool has_number(int fd) { return fd >= 0 && fd < kDescriptorsMax; }
inline std::size_t at(int fd) { return static_cast<std::size_t>(fd); }

class Hold {
 public:
  explicit Hold(Set& set) : set_(set) {
    while (set_.lock.exchange(true, std::memory_order_acquire)) ::sched_yield();
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { set_.lock.store(false, std::memory_order_release); }

 private:
  Set& set_;
};

// Wakes one thread that sleeps for the set in the kernel, so that it looks at the rings again.  If
// none sleeps, the next thread that would sleep looks again.  `set` is the set's descriptor.
void kick(int set);
// Returns the value that the kernel reports for such a wake, in place of a program's epoll_data.
std::uint64_t kick_data();

// ---- entries; hold the set

// Returns true if what the ring has is to be reported for the entry.  With EPOLLET it compares the
// position in the ring with the one that the entry reported last.
inline bool is_to_report(const stream::Receiver::Look& look, const Entry& entry) {
  return look.bytes > 0 && ((entry.events & EPOLLET) == 0 || look.seen != entry.seen);
}
// Does the same for an entry that is a socket, and sets `seen` for the next report.
bool is_ready_beyond(Socket& socket, const Entry& entry, std::uint64_t& seen);
// Does the same for an entry that is a set.
bool is_ready_beyond(Set& inner, const Entry& entry, std::uint64_t& seen);
bool is_ready(const Entry& entry);
// Finds the entry that an event of the kernel is for.  Returns nullptr if it was removed.
Entry* entry_of(Set& set, const epoll_data_t& data);

}  // namespace verbena::preload::epolls
