#pragma once

#include <cstddef>
#include <span>
#include <string>

// Names packets for a diagram: "ConnectRequest", "SEND first", "READ request", "ACK".
namespace verbena::fabric {

// Names the packet.  `transport` is BTH to pad.
std::string packet_name(std::span<const std::byte> transport);

}  // namespace verbena::fabric
