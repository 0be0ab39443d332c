#pragma once

#include <cstddef>
#include <span>
#include <string>

// Gives names to packets for a diagram: "ConnectRequest", "SEND first", "READ request", "ACK".
namespace verbena::fabric {

// Returns the name of a packet.  `transport` is the packet from BTH to pad.
std::string packet_name(std::span<const std::byte> transport);

}  // namespace verbena::fabric
