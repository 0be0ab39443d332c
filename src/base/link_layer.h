#pragma once

#include <cstdint>

namespace verbena {

// Tells what carries the packets of a port.  The form of the addresses depends on it.
enum class LinkLayer : std::uint8_t {
  kEthernet,    // RoCEv2: UDP over IP (annex A17)
  kInfiniband,  // LRH and, between subnets or where wanted, GRH (vol1 7, 8)
};

}  // namespace verbena
