#pragma once

#include "base/strong.h"
#include "wire/ip.h"

// Defines the addresses of a host's loopback interface.
namespace verbena::wire {

inline constexpr Gid kLoopbackIpv4 = ipv4_gid(0x7f000001);
inline constexpr Gid kLoopbackIpv6 = [] {
  Gid gid;
  gid.bytes[15] = std::byte{1};
  return gid;
}();

// Returns true for 127.0.0.0/8.
constexpr bool is_loopback_ipv4(const Gid& address) {
  return is_ipv4(address) && ipv4_address(address) >> 24 == 127;
}

// Returns true for 127.0.0.0/8 and ::1.
constexpr bool is_loopback(const Gid& address) {
  return is_loopback_ipv4(address) || address == kLoopbackIpv6;
}

}  // namespace verbena::wire
