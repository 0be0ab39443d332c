#pragma once

#include <infiniband/ib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace verbena::c_api {

// Returns the length of an address in bytes, or 0 if an rdma_cm_id does not support its family.
inline std::size_t bytes_of(const sockaddr& address) {
  switch (address.sa_family) {
    case AF_INET: return sizeof(sockaddr_in);
    case AF_INET6: return sizeof(sockaddr_in6);
    case AF_IB: return sizeof(sockaddr_ib);
    default: return 0;
  }
}

}  // namespace verbena::c_api
