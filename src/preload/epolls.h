#pragma once

#include <cstdint>

#include "preload/socket_table.h"

// Lets epoll sets report bytes that lie in rings.
//
// A copy of each set says which descriptors are in it.  A thread that waits for a set looks at the
// rings of its connections first, and enters a wait for each of them (waits.h) while it sleeps in
// the kernel.  So each connection in a set has as many waits as the set has sleepers, whoever adds,
// removes or closes it meanwhile.
//
// EPOLLONESHOT: the copy knows which entries were reported and not armed again; an event of the
// kernel for such a one is dropped, since it is not the program's turn.  EPOLLEXCLUSIVE: who looks
// at the ring first reports it.  A set within a set, in poll() or in select() is entered with the
// one that contains it.  When an entry is added or armed whose ring has bytes, one of the threads
// that sleep for the set is woken, so that it looks.
//
// Some uses make it impossible to say who must be told of bytes in a ring: EPOLLET and EPOLLONESHOT
// for a set within a set, sets that were inherited over exec, and more than kSetsMax sets.  There
// the connection waits for ever, so that its bytes come by TCP.
namespace verbena::preload::epolls {

inline constexpr std::size_t kSetsMax = 256;
inline constexpr std::uint32_t kEntriesMax = 65536;  // connections beyond these wait for ever

struct Set;

// Returns the set of a descriptor, if this library knows it.
Set* set_at(int fd);
// Returns true if a ring has bytes for an entry of the set.
bool has_ready(Set& set);
// The thread is about to sleep for the set in the kernel.  Returns false if a ring has bytes: do
// not sleep.  With `always` it returns true.
bool enter(Set& set, bool always);
// The thread has slept.
void leave(Set& set);

// Returns true if the descriptor is one that this library uses for its sets.
bool owns(int fd);

// The descriptor is a connection from now on; it may have been in a set before.
void is_tracked(int fd, Socket& socket);
// The kernel is about to close the descriptor.
void is_closed(int fd);
void is_copied(int from, int to);

void after_fork_in_child();

}  // namespace verbena::preload::epolls
