#pragma once

#include <cstdint>

namespace verbena {

// Names the protocol that carries the packets of a port.  The protocol decides which form the
// addresses have.
enum class LinkLayer : std::uint8_t {
  kEthernet,    // RoCEv2: UDP over IP (annex A17)
  kInfiniband,  // LRH, and a GRH if the path needs or requests one (vol1 7, 8)
};

}  // namespace verbena
