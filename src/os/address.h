#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

#include "base/strong.h"
#include "wire/address_text.h"
#include "wire/ip.h"

// Converts between the kernel's socket addresses and GIDs.
namespace verbena::os {

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

inline in_addr ipv4_of(const Gid& gid) { return {.s_addr = htonl(wire::ipv4_address(gid))}; }
inline in6_addr ipv6_of(const Gid& gid) {
  in6_addr address;
  std::memcpy(&address, gid.bytes.data(), sizeof(address));
  return address;
}
inline Gid gid_of(in_addr address) { return wire::ipv4_gid(ntohl(address.s_addr)); }
inline Gid gid_of(const in6_addr& address) {
  Gid gid;
  std::memcpy(gid.bytes.data(), &address, sizeof(address));
  return gid;
}

using wire::address_text;
using wire::is_link_local;
using wire::is_multicast;

// Makes a socket address.  Uses `scope`, the index of an interface, only if the address is
// link-local.
inline SocketAddress socket_address(const Gid& gid, std::uint16_t port, std::uint32_t scope) {
  SocketAddress address{};
  if (wire::is_ipv4(gid)) {
    address.v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = ipv4_of(gid), .sin_zero = {}};
  } else {
    address.v6 = {.sin6_family = AF_INET6,
                  .sin6_port = htons(port),
                  .sin6_flowinfo = 0,
                  .sin6_addr = ipv6_of(gid),
                  .sin6_scope_id = is_link_local(gid) ? scope : 0};
  }
  return address;
}

inline socklen_t size_of(const SocketAddress& address) {
  return address.any.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

}  // namespace verbena::os
