#pragma once

#include <cstdint>
#include <string_view>

namespace verbena::os {

// Tells which processes may receive what is sent on a Unix socket.  These functions allocate
// memory, and read /proc and the kernel's table of sockets.

// Returns the inode of the socket that the connected Unix socket `fd` sends to.  Returns 0 if the
// socket has no peer, or if the kernel does not tell (no sock_diag).
std::uint64_t unix_peer_inode(int fd);

// Returns true if a process holds the socket with this inode, and if each process that holds it has
// mapped a file whose path contains `library`.  Does not see processes of other users, unless root
// calls it, and no processes outside this PID namespace.
bool holders_have_library(std::uint64_t inode, std::string_view library);

}  // namespace verbena::os
