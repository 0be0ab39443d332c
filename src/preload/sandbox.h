#pragma once

// Keeps programs working that limit their own system calls.
namespace verbena::preload::sandbox {

// Call these before seccomp(2), or prctl() with PR_SET_SECCOMP.  If the call installs a filter for
// system calls, the process's connections go back to TCP, and later ones stay there, since such a
// filter allows the calls of the program, and may kill the process for the calls of this library.
// Without a filter the call only asks what the kernel can do, as libseccomp does in each program
// that is linked with it.
void before_seccomp(unsigned long operation, bool has_filter);
void before_prctl(unsigned long mode, bool has_filter);

}  // namespace verbena::preload::sandbox
