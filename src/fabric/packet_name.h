#pragma once

#include <cstddef>
#include <span>
#include <string>

// Packets as a diagram shows them: "ConnectRequest", "SEND first", "READ request", "ACK".
namespace verbena::fabric {

// `transport` is BTH to pad.
std::string packet_name(std::span<const std::byte> transport);

}  // namespace verbena::fabric
