#pragma once

#include <cstdint>

#include "preload/socket_table.h"

// Lets epoll sets report bytes that lie in rings.
//
// A copy of each set says which descriptors are in it.  A thread that waits for a set looks at the
// rings of its connections first, and enters a wait for each of them (waits.h) while it sleeps in
// the kernel.  So each connection in a set has as many waits as threads sleep for the set, even if
// it is added, removed or closed meanwhile.
//
// With EPOLLONESHOT, the copy knows which entries were reported and not armed again.  An event of
// the kernel for such an entry is dropped, because the program has not asked for it yet.  With
// EPOLLEXCLUSIVE, the thread that looks at the ring first reports it.  A thread that sleeps for a
// set also sleeps for the sets in it, and poll() and select() do the same.  When an entry whose
// ring has bytes is added or armed, one of the threads that sleep for the set is woken, so that it
// looks at the ring.
//
// In some cases the library cannot know which thread must be told of bytes in a ring: sets that
// were inherited over exec, and more than kSetsMax sets.  Then the receiver never promises to look
// at the ring, so all bytes come by TCP.
namespace verbena::preload::epolls {

inline constexpr std::size_t kSetsMax = 256;
inline constexpr std::uint32_t kEntriesMax = 65536;  // further connections stay on TCP

struct Set;

// Returns the set of a descriptor, if this library knows it.
Set* set_at(int fd);
// Returns a number that is at least that of each known set, and of each entry; -1 if there was none
// yet.
int highest();
// Returns true if a ring has bytes for an entry of the set.
bool has_ready(Set& set);
// Call this before the thread sleeps for the set in the kernel.  Returns false if a ring has bytes;
// then the thread must not sleep.  With `always` it returns true in any case.
bool enter(Set& set, bool always);
// Call this after the thread has slept for the set.
void leave(Set& set);

// Returns true if the descriptor is one that this library uses for its sets.
bool owns(int fd);

// Call this when a descriptor becomes a connection.  It may have been in a set before.
void is_tracked(int fd, Socket& socket);
// Call this before the kernel closes the descriptor.
void is_closed(int fd);
// Call this when dup() or a similar call has copied the descriptor.
void is_copied(int from, int to);

// Frees the sets that other threads of the parent held or waited for.
void after_fork_in_child();

}  // namespace verbena::preload::epolls
