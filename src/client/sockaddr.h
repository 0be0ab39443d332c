#pragma once

#include <sys/socket.h>

#include "base/error.h"
#include "rdmacm/types.h"

namespace verbena::client {

// Converts a program's socket address.  An IPv4 address becomes a mapped GID.  kNotSupported: the
// family is not IPv4, IPv6 or AF_IB.
Result<rdmacm::SocketAddress> from_sockaddr(const sockaddr* address);
// Does the same for the address that an id is bound to, and masks the service id (AF_IB).
Result<rdmacm::SocketAddress> source_from_sockaddr(const sockaddr* address);
// Does the same for the address of a multicast group: its P_Key does not count (AF_IB), because a
// join uses the id's.
Result<rdmacm::SocketAddress> group_from_sockaddr(const sockaddr* address);
// Converts an address back.  Family 0 gives an address of zeros.
sockaddr_storage to_sockaddr(const rdmacm::SocketAddress& address);

}  // namespace verbena::client
