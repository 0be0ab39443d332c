#include "hosts/late_packets.h"

#include <algorithm>

namespace verbena::hosts {

std::size_t LatePackets::size() const {
  std::size_t packets = 0;
  for (const auto& [way, waiting] : lines_) packets += waiting.line.size();
  return packets;
}

Time LatePackets::next_deadline(const ethernet::LinkFaults& faults) const {
  Time next = kNever;
  for (const auto& [way, waiting] : lines_) {
    if (waiting.needs_room || faults.is_paused(way.rail.host)) continue;
    next = std::min(next, waiting.line.next_due());
  }
  return next;
}

}  // namespace verbena::hosts
