#include "hosts/capture_packet.h"

#include <algorithm>
#include <array>

#include "link/burst.h"

namespace verbena::hosts {

void capture_packet(agent::Captures& captures, link::Direction direction,
                    const link::Arrival& packet, Time now) {
  if (captures.empty()) return;
  std::array<std::byte, link::Burst::kPacketBytesMax + link::Burst::kIcrcBytes> datagram;
  const auto used = std::span(datagram).first(packet.transport.size() + link::Burst::kIcrcBytes);
  std::ranges::copy(packet.transport, used.begin());
  link::seal(packet.address, used, 0);  // for InfiniBand, add() computes its own ICRC
  captures.add(direction, packet.address, 0, used, now);
}

}  // namespace verbena::hosts
