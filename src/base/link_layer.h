#pragma once

#include <cstdint>

namespace verbena {

// Selects what carries the packets of a port, and with it the form of their addresses.
enum class LinkLayer : std::uint8_t {
  kEthernet,    // RoCEv2: UDP over IP (annex A17)
  kInfiniband,  // LRH and, between subnets or where wanted, GRH (vol1 7, 8)
};

}  // namespace verbena
