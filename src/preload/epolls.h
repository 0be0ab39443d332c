#pragma once

#include <cstdint>

#include "preload/socket_table.h"

// Lets epoll sets report bytes that lie in rings.
//
// The library has a copy of each set, which lists its descriptors.  A thread that waits for a set
// first checks the rings of its connections, and begins a sleep for each connection (waits.h)
// before it sleeps in the kernel.  So each connection in a set has one sleeper for each thread that
// sleeps for the set.  The library corrects this count when a connection is added, removed or
// closed meanwhile.
//
// With EPOLLONESHOT, the copy records which entries were reported and not armed again.  The library
// drops an event of the kernel for such an entry, because the program has not requested it yet.
// EPOLLEXCLUSIVE needs no code here: it limits how many sleeping threads the kernel wakes, and
// bytes for sleeping threads come by TCP.  A thread that sleeps for a set also sleeps for the sets
// in it, and poll() and select() do the same.  When the program adds or arms an entry whose ring
// has bytes, the library wakes one of the threads that sleep for the set, so that it checks the
// ring.
//
// The library does not know sets that were inherited by exec, and sets beyond kSetsMax.  So it does
// not know which threads sleep for them.  If the program adds a connection to such a set or changes
// its entry, the receiver withdraws its promise for ever, so all later bytes come by TCP.  If the
// ring has unread bytes then, the library resets the connection.  An inherited set may also contain
// connections that were inherited together with it.  So the first epoll_wait() for an inherited set
// has the same effect on all inherited connections.
namespace verbena::preload::epolls {

inline constexpr std::size_t kSetsMax = 256;
inline constexpr std::uint32_t kEntriesMax = 65536;  // in a set; further connections stay on TCP

struct Set;

// Returns the copy of the set that the descriptor refers to; nullptr if the library has none.
Set* find_set(int fd);
// Returns the highest descriptor that was ever a known set, or was ever in a set; -1 if there was
// none yet.
int highest_descriptor();
// Returns true if a ring has bytes to report for an entry of the set.
bool has_ready_entry(Set& set);
// Call this before the thread sleeps for the set in the kernel.  Returns false if a ring has bytes
// to report; then the thread must not sleep.  With `even_if_ready`, it always returns true.
bool begin_sleep(Set& set, bool even_if_ready);
// Call this after the thread has slept for the set.
void end_sleep(Set& set);

// Returns true if this library uses the descriptor to wake threads that sleep for sets.
bool owns(int fd);

// Call this when this library begins to track the connection of a descriptor.  The descriptor may
// be in a set already.
void on_tracked(int fd, Socket& socket);
// Call this when this library continues a connection that the process has inherited by exec.
void on_continued(int fd);
// Call this before a wait for an epoll set that the library does not know.
void before_wait_for_unknown_set(int fd);
// Call this before the kernel closes the descriptor.
void on_close(int fd);
// Call this when dup() or a similar call has copied the descriptor.
void on_copy(int from, int to);

// Unlocks the sets that other threads of the parent had locked, and ends the sleeps of these
// threads.
void after_fork_in_child();

}  // namespace verbena::preload::epolls
