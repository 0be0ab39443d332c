#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/error.h"
#include "link/address.h"
#include "link/framing.h"

// Converts between transport packets and packets on an InfiniBand link: LRH, GRH, and the ICRC.
namespace verbena::link {

// Returns the packet from LRH to ICRC for `transport`, BTH to pad.  REQUIRES: the address is of an
// InfiniBand link.
std::vector<std::byte> seal_infiniband(const Address& address,
                                       std::span<const std::byte> transport);

// Checks a packet from LRH to ICRC, and returns its addresses and the transport packet.
Result<Arrival> open_infiniband(std::span<const std::byte> packet);

}  // namespace verbena::link
