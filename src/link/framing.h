#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "link/flow.h"

// Between a UDP payload and a transport packet: the ICRC and the checks around it.
namespace verbena::link {

// A packet that came in whole.
struct Arrival {
  Flow flow;                             // source = the peer
  std::span<const std::byte> transport;  // BTH up to and including pad
};

// Writes the ICRC into the last four bytes of `datagram` (BTH to ICRC).  `identification` is what
// the kernel will put into the IPv4 header: 0 from an unconnected socket with IP_PMTUDISC_DO, the
// index in the batch under UDP_SEGMENT.
void seal(const Flow& flow, std::span<std::byte> datagram, std::uint16_t identification);

// Checks length and ICRC of a UDP payload.  A socket does not show the IPv4 identification, so the
// one that explains the ICRC is looked for (wire/icrc.h).
Result<Arrival> open(const Flow& flow, std::span<const std::byte> datagram);

}  // namespace verbena::link
