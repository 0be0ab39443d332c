#include "hosts/late_packets.h"

#include <algorithm>

namespace verbena::hosts {

std::size_t LatePackets::size() const {
  std::size_t packets = 0;
  for (const auto& [key, state] : queues_) packets += state.queue.size();
  return packets;
}

Time LatePackets::next_deadline(const ethernet::LinkFaults& faults) const {
  Time next = kNever;
  for (const auto& [key, state] : queues_) {
    if (state.receiver_is_full || faults.is_paused(key.rail.host)) continue;
    next = std::min(next, state.queue.next_due());
  }
  return next;
}

}  // namespace verbena::hosts
