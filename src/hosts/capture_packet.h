#pragma once

#include "agent/captures.h"
#include "base/time.h"
#include "link/framing.h"

namespace verbena::hosts {

// Adds a packet of a virtual host's QP1 to the captures.  Such packets have no ICRC, so
// this function computes the ICRC that they would have on a wire.
void capture_packet(agent::Captures& captures, link::Direction direction,
                    const link::Arrival& packet, Time now);

}  // namespace verbena::hosts
