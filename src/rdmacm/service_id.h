#pragma once

#include <cstdint>

#include "rdmacm/types.h"

namespace verbena::rdmacm {

// Tells how an address names its service: by a port; by a service id outside the port spaces; or
// not at all, if the address is only the GID of a peer.
enum class NamedBy : std::uint8_t { kPort, kService, kNothing };
constexpr NamedBy named_by(const SocketAddress& address) {
  if (!address.by_gid) return NamedBy::kPort;
  if (address.service.value == 0) return address.port == 0 ? NamedBy::kNothing : NamedBy::kPort;
  const std::uint64_t space = address.service.value >> 16;
  const bool is_port_space = space == 0 || space == kPortSpaceTcp || space == kPortSpaceUdp ||
                             space == kPortSpaceIb || space == kPortSpaceIpoib;
  return is_port_space ? NamedBy::kPort : NamedBy::kService;
}

}  // namespace verbena::rdmacm
