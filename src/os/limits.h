#pragma once

namespace verbena::os {

// Replaces the resource limits that a daemon inherited from the program that started it.  The
// limits of CPU time, file size, memory and open files are raised to the hard limits, or above them
// if this process has that right.  Core files are disabled.  Makes only system calls, so the child
// of a clone may call it.
void set_daemon_limits();

}  // namespace verbena::os
