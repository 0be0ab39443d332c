#pragma once

#include <sys/socket.h>

#include "base/error.h"
#include "rdmacm/types.h"

namespace verbena::client {

// Between the programs' socket addresses and the stack's.  IPv4 is a mapped GID.
// kNotSupported: another family than IPv4 and IPv6.
Result<rdmacm::SocketAddress> from_sockaddr(const sockaddr* address);
// The same of what an id is to be bound to: of a service id (AF_IB) what its mask names.
Result<rdmacm::SocketAddress> source_from_sockaddr(const sockaddr* address);
// Family 0 gives an address of zeros.
sockaddr_storage to_sockaddr(const rdmacm::SocketAddress& address);

}  // namespace verbena::client
