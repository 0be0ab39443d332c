#pragma once

// Stops the use of rings before a program limits its own system calls (seccomp).
namespace verbena::preload::sandbox {

// Call these before seccomp(2), or prctl() with PR_SET_SECCOMP.  If the call installs a filter for
// system calls or enters the strict mode, the process's connections go back to TCP, and later
// connections stay on TCP.  The filter allows the system calls of the program, but may kill the
// process for system calls of this library.  SECCOMP_SET_MODE_FILTER without a filter only queries
// what the kernel supports; libseccomp makes such calls in each program that is linked with it.
void before_seccomp(unsigned long operation, bool has_filter);
void before_prctl(unsigned long mode, bool has_filter);

}  // namespace verbena::preload::sandbox
