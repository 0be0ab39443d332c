#pragma once

namespace verbena::os {

// Gives a daemon resource limits of its own, not those of the program that happened to start it:
// CPU time, file sizes, memory and open files as far as the hard limits allow, or beyond where this
// process may raise them; and no core file.  Only system calls: also for the child of a clone.
void set_daemon_limits();

}  // namespace verbena::os
