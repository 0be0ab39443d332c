#pragma once

// Lets programs limit their own system calls.
namespace verbena::preload::sandbox {

// Call these before seccomp(2), or prctl() with PR_SET_SECCOMP.  If the call installs a filter for
// system calls, the process's connections go back to TCP, and later connections stay on TCP.  Such
// a filter knows the calls of the program, and may kill the process for the calls of this library.
// A call without a filter only asks what the kernel can do; libseccomp makes such calls in each
// program that is linked with it.
void before_seccomp(unsigned long operation, bool has_filter);
void before_prctl(unsigned long mode, bool has_filter);

}  // namespace verbena::preload::sandbox
