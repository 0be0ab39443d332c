#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/error.h"
#include "link/address.h"
#include "link/framing.h"

// Converts between transport packets and packets on an InfiniBand link: LRH, GRH, and the ICRC.
namespace verbena::link {

// Returns the packet from LRH to ICRC for `transport`, which contains the bytes from BTH to pad.
// REQUIRES: address.is_infiniband().
std::vector<std::byte> seal_infiniband(const Address& address,
                                       std::span<const std::byte> transport);

// Checks a packet from LRH to ICRC, and returns its address and the transport packet.  The caller
// sets the port of the address.
Result<Arrival> open_infiniband(std::span<const std::byte> packet);

}  // namespace verbena::link
