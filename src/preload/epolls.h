#pragma once

#include <cstdint>

#include "preload/socket_table.h"

// Lets epoll sets report bytes that lie in rings.
//
// A copy of each set says which descriptors are in it.  A thread that waits for a set looks at the
// rings of its connections first, and begins a sleep for each connection (waits.h) before it sleeps
// in the kernel.  So each connection in a set has as many sleepers as threads sleep for the set,
// even if it is added, removed or closed meanwhile.
//
// With EPOLLONESHOT, the copy knows which entries were reported and not armed again.  An event of
// the kernel for such an entry is dropped, because the program has not asked for it yet.  With
// EPOLLEXCLUSIVE, only the thread that looks at the ring first reports it.  A thread that sleeps
// for a set also sleeps for the sets in it, and poll() and select() do the same.  When an entry
// whose ring has bytes is added or armed, one of the threads that sleep for the set is woken, so
// that it looks at the ring.
//
// In some cases the library cannot know which thread it must wake for bytes in a ring: for sets
// that were inherited over exec, and for sets beyond kSetsMax.  Then the receiver never promises to
// look at the ring, so all bytes come by TCP.
namespace verbena::preload::epolls {

inline constexpr std::size_t kSetsMax = 256;
inline constexpr std::uint32_t kEntriesMax = 65536;  // further connections stay on TCP

struct Set;

// Returns the set of a descriptor, if this library knows it.
Set* set_at(int fd);
// Returns an upper bound for the descriptors of all known sets and their entries; -1 if there was
// none yet.
int highest_descriptor();
// Returns true if a ring has bytes for an entry of the set.
bool has_ready(Set& set);
// Call this before the thread sleeps for the set in the kernel.  Returns false if a ring has bytes;
// then the thread must not sleep.  With `always`, it returns true even then.
bool begin_sleep(Set& set, bool always);
// Call this after the thread has slept for the set.
void end_sleep(Set& set);

// Returns true if this library uses the descriptor to wake threads that sleep for sets.
bool owns(int fd);

// Call this when a descriptor becomes a connection.  It may have been in a set before.
void on_track(int fd, Socket& socket);
// Call this before the kernel closes the descriptor.
void on_close(int fd);
// Call this when dup() or a similar call has copied the descriptor.
void on_copy(int from, int to);

// Unlocks the sets that the parent's other threads held, and ends these threads' sleeps.
void after_fork_in_child();

}  // namespace verbena::preload::epolls
