#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "os/fd.h"

// Reads facts about processes from the kernel.  Any thread may call these functions.
namespace verbena::os {

// Opens a descriptor that becomes readable when the process ends.  kAddressNotFound: there is no
// such process.
Result<Fd> open_pidfd(pid_t pid);
// Returns the pid of the process that a pidfd refers to.  kMalformed: the descriptor is not a
// pidfd, or its process has ended or is not visible from here.  Use it to check a pidfd that a
// program has sent against the credentials of its channel.
Result<pid_t> pid_of_pidfd(int pidfd);
// Returns true if the process of the pidfd has ended.
bool has_ended(int pidfd);

// Returns the name of a process, at most 15 bytes.  The process chooses this name, so pass it to
// printable_name() before you show it.  Empty if there is no such process.
std::string process_name(pid_t pid);
// Returns true if a signal or a debugger has stopped the process.  False if this is unknown.
bool process_is_stopped(pid_t pid);
// Returns the time at which the process started, in clock ticks since the host booted.  The pid and
// the start time together identify a process until the host reboots.  kAddressNotFound: there is no
// such process.
Result<std::uint64_t> process_start_time(pid_t pid);

// Returns true if this process could touch [address, address + length) without a fault.  The
// registration of memory calls it to return EFAULT.  Touches nothing and raises no signal.  The
// answer may be outdated at once, since another thread may unmap the memory.  It does not detect
// pages past the end of a mapped file (SIGBUS).
//
// Cost: a few microseconds with PROCMAP_QUERY (Linux 6.11), else one read of
// /proc/thread-self/maps up to the address, about 1 us per mapping.  Without /proc it only checks
// that the memory is mapped (mincore), and assumes that the protection is right.
bool memory_is_mapped(const void* address, std::size_t length, bool writable);

// Makes the kernel populate (fault in) the pages now.  Returns false if touching them would raise a
// signal.  Before Linux 5.14 it populates nothing and returns memory_is_mapped().  If the pages are
// in memory, the cost is one system call that walks them.
bool populate_pages(const void* address, std::size_t length, bool writable);

}  // namespace verbena::os
