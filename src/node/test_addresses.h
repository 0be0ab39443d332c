#pragma once

#include <cstdint>
#include <string>

#include "node/gid_table.h"
#include "wire/ip.h"

// Provides addresses of a host for tests.
namespace verbena::node {

inline const Gid kLocalIp = wire::ipv4_gid(0x0a000001);
inline const Gid kRemoteIp = wire::ipv4_gid(0x0a000002);

inline HostAddress address(const Gid& gid, std::uint32_t interface, bool default_route = false) {
  return {.gid = gid,
          .interface = interface,
          .interface_name = "eth" + std::to_string(interface),
          .default_route = default_route};
}

}  // namespace verbena::node
