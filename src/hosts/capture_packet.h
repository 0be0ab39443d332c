#pragma once

#include "agent/captures.h"
#include "base/time.h"
#include "link/framing.h"

namespace verbena::hosts {

// Adds a packet to the captures that the node of a virtual host or of an HCA has sent or received
// itself: a packet of QP1 or of IPoIB.  The packet has no ICRC, so the captures get the ICRC that
// it would have on a wire.
void capture_packet(agent::Captures& captures, link::Direction direction,
                    const link::Arrival& packet, Time now);

}  // namespace verbena::hosts
