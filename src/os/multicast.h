#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/strong.h"

// Membership of multicast groups, of a socket and not of a process: copies of the descriptor share
// it, and it lasts until the last one is closed or leave_group().
namespace verbena::os {

// `fd` is of the group's family.  `interface` 0 lets the kernel choose by route.  kNoResources: the
// limit of the kernel (net.ipv4.igmp_max_memberships, optmem_max).  Joining twice is not an error.
Result<void> join_group(int fd, const Gid& group, std::uint32_t interface);
// kAddressNotFound: was no member.
Result<void> leave_group(int fd, const Gid& group, std::uint32_t interface);

}  // namespace verbena::os
