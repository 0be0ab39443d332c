#pragma once

// Takes this library out of the way of a program that limits its own system calls.
namespace verbena::preload::sandbox {

// The program is about to install a filter for system calls (seccomp(2)).  It was written for the
// calls of the program, and may kill the process for ours.  So the process's connections go back to
// TCP, and later ones stay there.
void begins();

}  // namespace verbena::preload::sandbox
