#pragma once

#include <cstdint>
#include <string_view>

namespace verbena::os {

// Finds out which processes may receive the data that is sent on a Unix socket.  These functions
// allocate memory, and read /proc and the kernel's table of sockets.

// Returns the inode of the socket that the connected Unix socket `fd` sends to.  Returns 0 if the
// socket has no peer, or if the kernel lacks sock_diag.
std::uint64_t unix_peer_inode(int fd);

// Returns true if at least one process has a descriptor of the socket with this inode, and each
// such process has mapped a file whose path contains `library`.  Processes outside this PID
// namespace are ignored.  If the caller is not root, processes of other users are ignored, too.
bool all_owners_have_library(std::uint64_t inode, std::string_view library);

}  // namespace verbena::os
