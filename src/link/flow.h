#pragma once

#include <cstdint>

#include "base/strong.h"

namespace verbena::link {

// Holds the addresses of one packet, and the header fields that a network uses to route it.  RoCEv2
// addresses are IP addresses in the form of GIDs (annex A17).
struct Flow {
  Gid source{};
  Gid destination{};
  std::uint32_t interface = 0;    // the kernel's index; needed for link-local addresses, else 0
  std::uint16_t source_port = 0;  // UDP, 0xC000-0xFFFF, from the flow label (wire/source_port.h)
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 64;

  friend constexpr bool operator==(const Flow&, const Flow&) = default;
};

}  // namespace verbena::link
