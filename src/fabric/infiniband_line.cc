#include "fabric/infiniband_line.h"

#include <algorithm>
#include <utility>

#include "link/infiniband.h"

namespace verbena::fabric {

void InfinibandLine::attach(Lid base_lid, std::uint8_t lmc, Receiver receiver) {
  VB_CHECK(base_lid.value % (1u << lmc) == 0 && port_with(base_lid) == nullptr);
  ports_.push_back({base_lid, lmc, std::move(receiver)});
}

const InfinibandLine::Port* InfinibandLine::port_with(Lid lid) const {
  const auto found = std::ranges::find_if(ports_, [&](const Port& port) {
    return lid.value >> port.lmc == port.base_lid.value >> port.lmc;
  });
  return found == ports_.end() ? nullptr : &*found;
}

void InfinibandLine::send(link::Burst& burst) {
  for (const link::Burst::Packet& packet : burst.packets()) {
    std::vector<std::byte> bytes = link::seal_infiniband(packet.address, burst.transport(packet));
    const sim::PacketOutcome fate = wire_.next();
    if (fate.corrupt) {
      const std::uint64_t bit = fate.bit % (bytes.size() * 8);
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
    for (const Duration delay : fate.arrivals) {
      world_.after(delay, [this, bytes] { arrive(bytes); });
    }
  }
  burst.clear();
}

void InfinibandLine::arrive(std::span<const std::byte> packet) {
  const auto arrival = link::open_infiniband(packet);
  if (!arrival) return void(++counters_.malformed);
  const Port* port = port_with(arrival->address.destination_lid);
  if (port == nullptr) return void(++counters_.unknown_lid);
  ++counters_.delivered;
  port->receiver(*arrival);
}

}  // namespace verbena::fabric
