#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/strong.h"

// Joins and leaves multicast groups.  A membership belongs to a socket, not to a process: copies of
// the descriptor share it, and it lasts until leave_group() or until the last copy is closed.
namespace verbena::os {

// Makes `fd`, a socket of the group's address family, a member.  If `interface` is 0, the kernel
// chooses the interface by its routes.  kNoResources: the kernel's limit
// (net.ipv4.igmp_max_memberships, net.core.optmem_max) is reached.  Joining twice is not an error.
Result<void> join_group(int fd, const Gid& group, std::uint32_t interface);
// Ends a membership.  kAddressNotFound: the socket was not a member.
Result<void> leave_group(int fd, const Gid& group, std::uint32_t interface);

}  // namespace verbena::os
