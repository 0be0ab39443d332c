#pragma once

// Keeps programs working that limit their own system calls.
namespace verbena::preload::sandbox {

// Call this before the program installs a filter for system calls (seccomp(2)).  Such a filter
// allows the calls of the program, and may kill the process for the calls of this library.  So the
// process's connections go back to TCP, and later ones stay there.
void begins();

}  // namespace verbena::preload::sandbox
