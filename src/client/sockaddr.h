#pragma once

#include <sys/socket.h>

#include "base/error.h"
#include "rdmacm/types.h"

namespace verbena::client {

// Converts a program's socket address.  An IPv4 address becomes a mapped GID.  kNotSupported: the
// family is not IPv4, IPv6 or AF_IB.
Result<rdmacm::SocketAddress> from_sockaddr(const sockaddr* address);
// Converts the address to which a program binds an id.  Applies the mask of the service id (AF_IB).
Result<rdmacm::SocketAddress> source_from_sockaddr(const sockaddr* address);
// Converts the address of a multicast group.  Ignores its P_Key (AF_IB), because a join uses the
// P_Key of the id.
Result<rdmacm::SocketAddress> group_from_sockaddr(const sockaddr* address);
// Converts an address to a struct sockaddr_in, sockaddr_in6 or sockaddr_ib.  If the family is 0,
// returns an address of zeros.
sockaddr_storage to_sockaddr(const rdmacm::SocketAddress& address);

}  // namespace verbena::client
