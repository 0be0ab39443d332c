#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "os/fd.h"

// Questions about processes.  Any thread.
namespace verbena::os {

// Becomes readable when the process ends.  kAddressNotFound: there is none.
Result<Fd> open_pidfd(pid_t pid);
// Whose pidfd it is.  kMalformed: no pidfd, or of a process that has ended or cannot be seen from
// here.  For checking one that was sent by a program against the credentials of its channel.
Result<pid_t> pid_of_pidfd(int pidfd);
// The process of a pidfd has ended.
bool has_ended(int pidfd);

// At most 15 bytes, which the process chose: show them by printable_name().  Empty if there is no
// such process.
std::string process_name(pid_t pid);
// By a signal or a debugger: it does nothing until it goes on.  False if that cannot be seen.
bool process_is_stopped(pid_t pid);
// In clock ticks since the host booted; with the pid it names a process for good.
// kAddressNotFound: there is none.
Result<std::uint64_t> process_start_time(pid_t pid);

// Whether this process could touch [address, address + length) without a fault: what registering
// memory has to know to answer EFAULT.  Touches nothing and raises no signal.  The answer is of
// this moment; another thread may unmap at once.  It cannot see pages of a file past its end
// (SIGBUS).
//
// Cost: some microseconds with PROCMAP_QUERY (Linux 6.11), else one read of /proc/self/maps up to
// the address, about 1 us per mapping.  Where /proc is missing only "mapped" is known (mincore),
// and protection is taken to be right.
bool memory_is_mapped(const void* address, std::size_t length, bool writable);

// Has the kernel bring the pages now, as touching them would.  False: touching them would raise a
// signal.  Before Linux 5.14 nothing is brought, and the answer is memory_is_mapped()'s.  Cost
// where they are there already: one system call, and a look at each page.
bool bring_pages(const void* address, std::size_t length, bool writable);

}  // namespace verbena::os
