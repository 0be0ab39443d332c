#include <algorithm>
#include <utility>

#include "subnet/impl.h"
#include "wire/bth.h"

namespace verbena::subnet {
namespace {

constexpr std::uint64_t kCounterWordBytes = 4;

void count_sent(Counts& counts, const PacketView& view, std::size_t bytes) {
  counts.add(Count::kXmitPackets);
  counts.add(Count::kXmitData, bytes / kCounterWordBytes);
  counts.add(view.is_multicast() ? Count::kMulticastXmitPackets : Count::kUnicastXmitPackets);
}

void count_received(Counts& counts, const PacketView& view, std::size_t bytes) {
  counts.add(Count::kRcvPackets);
  counts.add(Count::kRcvData, bytes / kCounterWordBytes);
  counts.add(view.is_multicast() ? Count::kMulticastRcvPackets : Count::kUnicastRcvPackets);
}

void count_relay_error(Counts& counts, Count detail) {
  counts.add(Count::kRcvSwitchRelayErrors);
  counts.add(detail);
}

void count_discard(Counts& counts, Count detail) {
  counts.add(Count::kXmitDiscards);
  counts.add(detail);
}

// Returns true if the P_Key of a packet may enter a switch by this port.  A limited member may send
// only with the P_Key of a limited member (vol1 18.2.4.2.1).
bool may_enter(const DevicePort& port, Pkey packet_pkey) {
  constexpr std::uint16_t kFullMember = 0x8000;
  return std::ranges::any_of(port.pkeys, [&](Pkey entry) {
    const auto difference = entry.value ^ packet_pkey.value;
    return entry.value != 0 && (difference & ~kFullMember & 0xffff) == 0 &&
           (difference == 0 || (entry.value & kFullMember) != 0);
  });
}

}  // namespace

void Subnet::Impl::run() {
  end_due_leases();
  send_due_traps();
  while (!in_flight_.empty() || impairments.move_due(now_, in_flight_, kInFlightMax)) {
    auto& queue = in_flight_.next();
    InFlight in_flight = std::move(queue.front());
    queue.pop_front();
    arrive(in_flight);
    if (in_flight_.empty()) send_due_traps();
  }
}

void Subnet::Impl::send(PortRef from, Packet packet) {
  auto view = view_packet(packet);
  const bool is_mad = view && view->destination_qpn.value <= wire::kGsiQpn.value;
  // A MAD must not go to a multicast group, because QP0 and QP1 are in no group (vol1 10.5).
  if (!view || (is_mad && (view->is_multicast() || !wire::parse_routed_packet(packet)))) {
    ++counters.sent;
    return void(++counters.malformed);
  }
  const bool is_smp = view->destination_qpn == wire::kSmiQpn;
  if (is_smp) {
    set_virtual_lane(packet, kManagementLane);
    view->lrh.virtual_lane = kManagementLane;
  }
  if (store_sent(from, packet, is_smp)) return;
  ++counters.sent;
  if (is_smp) {
    receive_smp({from, packet, *view, 0}, true);
  } else {
    auto entered =
        view->is_multicast() ? std::make_shared<EnteredSwitches>(devices.size()) : nullptr;
    send_from_hca({from, packet, *view, 0, std::move(entered)});
  }
}

void Subnet::Impl::arrive(InFlight& in_flight) {
  const auto view = view_packet(in_flight.packet);
  VB_CHECK(view.has_value());
  if (store_arrived(in_flight, view->is_management())) return;
  const LocalPacket local{in_flight.at, in_flight.packet, *view, in_flight.hops, in_flight.entered};
  DevicePort& port = at(local.port);
  if (in_flight.hops > kHopsMax) {
    ++counters.too_many_hops;
    return count_discard(port.counts, Count::kSwitchLifetimeDiscards);
  }
  if (!in_flight.is_loopback) count_received(port.counts, *view, in_flight.packet.size());
  if (!view->is_management()) {
    if (!port.accepts_data()) return;
    if (port.info.port_state == PortState::kArmed) {  // vol1 7.2.7: data activates the port
      port.info.port_state = PortState::kActive;
      report(local.port);
    }
  }
  if (devices[local.port.node].is_switch()) {
    arrive_at_switch(local);
  } else {
    arrive_at_hca(local);
  }
}

void Subnet::Impl::arrive_at_hca(const LocalPacket& local) {
  DevicePort& port = at(local.port);
  const Lid destination = local.view.lrh.destination;
  const bool is_permissive = destination == wire::kPermissiveLid && local.view.is_management();
  if (!is_permissive && !local.view.is_multicast() && !port.has_lid(destination)) {
    return port.counts.add(Count::kRcvErrors);
  }
  if (local.view.is_management() != (local.view.destination_qpn == wire::kSmiQpn)) {
    port.counts.add(Count::kRcvErrors);
    return port.counts.add(Count::kMalformedPackets);
  }
  if (local.view.is_management()) return receive_smp(local, false);
  if (!port.accepts_pkey(local.view.pkey)) {
    return add_key_violation(local.port, Violation::kPkey, local.packet, local.view);
  }
  if (local.view.destination_qpn == wire::kGsiQpn) return receive_gmp(local);
  deliver(local.port, local.view.destination_qpn, std::move(local.packet));
}

void Subnet::Impl::arrive_at_switch(const LocalPacket& local) {
  if (local.view.is_management() && local.view.lrh.destination == wire::kPermissiveLid) {
    return receive_smp(local, false);
  }
  if (!passes_inbound_enforcement(local)) return;
  forward(local);
}

bool Subnet::Impl::passes_inbound_enforcement(const LocalPacket& local) {
  DevicePort& port = at(local.port);
  if (local.view.is_management() || !port.info.partition_enforcement_inbound) return true;
  if (may_enter(port, local.view.pkey)) return true;
  port.counts.add(Count::kRcvConstraintErrors);
  add_switch_violation(local.port.port, local);
  return false;
}

bool Subnet::Impl::passes_outbound_enforcement(PortRef out, const LocalPacket& local) {
  DevicePort& port = at(out);
  if (local.view.is_management() || !port.info.partition_enforcement_outbound) return true;
  if (port.accepts_pkey(local.view.pkey)) return true;
  port.counts.add(Count::kXmitConstraintErrors);
  add_switch_violation(out.port, local);
  return false;
}

void Subnet::Impl::forward(const LocalPacket& local) {
  // QP0 and QP1 are in no group (vol1 10.5).  This MAD is an answer to a request whose source is a
  // group, or its directed route ends with the LID of a group.
  const bool is_mad = local.view.destination_qpn.value <= wire::kGsiQpn.value;
  if (is_mad && local.view.is_multicast()) return void(++counters.malformed);
  Device& device = devices[local.port.node];
  if (!device.is_switch()) return send_from_hca(local);
  if (local.view.is_multicast()) return forward_multicast(local);
  if (!device.ports[0].has_lid(local.view.lrh.destination)) return forward_unicast(local);
  if (local.view.is_management()) return receive_smp(local, false);
  if (!device.ports[0].accepts_pkey(local.view.pkey)) {
    return add_key_violation({local.port.node, 0}, Violation::kPkey, local.packet, local.view);
  }
  if (local.view.destination_qpn == wire::kGsiQpn) return receive_gmp(local);
  at(local.port).counts.add(Count::kRcvErrors);  // a switch has no other QPs
}

void Subnet::Impl::forward_unicast(const LocalPacket& local) {
  const std::uint8_t egress = devices[local.port.node].egress(local.view.lrh.destination);
  Counts& counts = at(local.port).counts;
  if (egress == wire::kLftNoPort || egress == 0) {
    return count_relay_error(counts, Count::kDlidMappingErrors);
  }
  if (egress == local.port.port) return count_relay_error(counts, Count::kLoopingErrors);
  const PortRef out{local.port.node, egress};
  if (!set_lane(out, local.port.port, local)) {
    return count_relay_error(counts, Count::kVlMappingErrors);
  }
  send_out(out, std::move(local.packet), local);
}

void Subnet::Impl::forward_multicast(const LocalPacket& local) {
  multicast_ports_.clear();
  devices[local.port.node].multicast_egress(local.view.lrh.destination, local.port.port,
                                            multicast_ports_);
  std::erase(multicast_ports_, std::uint8_t{0});  // port 0 is in no group
  for (const std::uint8_t egress : multicast_ports_) {
    const PortRef out{local.port.node, egress};
    if (set_lane(out, local.port.port, local)) {
      send_out(out, local.packet, local);
    } else {
      count_relay_error(at(local.port).counts, Count::kVlMappingErrors);
    }
  }
}

// Sends a packet from an HCA.  A packet to one of the port's own LIDs returns to the port.  A copy
// of each multicast packet returns to the port as well.
void Subnet::Impl::send_from_hca(const LocalPacket& local) {
  DevicePort& port = at(local.port);
  if (!local.view.is_management() && (!port.is_active() || !set_lane(local.port, 0, local))) {
    return count_discard(port.counts, Count::kInactiveDiscards);
  }
  const bool is_own = port.has_lid(local.view.lrh.destination);
  if (is_own || local.view.is_multicast()) {
    in_flight_.of(local.view.is_management())
        .push_back({.at = local.port,
                    .packet = local.packet,
                    .hops = local.hops + 1,
                    .is_loopback = true});
  }
  if (!is_own) send_out(local.port, std::move(local.packet), local);
}

// Sets the virtual lane of the packet for the egress port.  Returns false if the port does not
// operate that lane.
bool Subnet::Impl::set_lane(PortRef out, std::uint8_t ingress, const LocalPacket& local) {
  if (local.view.is_management()) return true;
  const DevicePort& port = at(out);
  const std::uint8_t lane = port.sl_to_vl[ingress][local.view.lrh.service_level];
  if (!port.operates_lane(lane)) return false;
  set_virtual_lane(local.packet, lane);
  return true;
}

void Subnet::Impl::send_out(PortRef out, Packet packet, const LocalPacket& local) {
  DevicePort& port = at(out);
  const auto peer = links.peer(out);
  const bool is_data = !local.view.is_management();
  if (!peer || (is_data && !port.is_active())) {
    return count_discard(port.counts, Count::kInactiveDiscards);
  }
  if (is_data && local.view.payload_bytes > mtu_bytes(Mtu{port.info.neighbor_mtu})) {
    return count_discard(port.counts, Count::kNeighborMtuDiscards);
  }
  const LocalPacket leaving{local.port, packet, local.view, local.hops};
  if (devices[out.node].is_switch() && !passes_outbound_enforcement(out, leaving)) return;
  if (in_flight_.of(!is_data).size() >= kInFlightMax) {
    ++counters.too_many_hops;
    return count_discard(port.counts, Count::kSwitchLifetimeDiscards);
  }
  if (enters_again(*peer, local)) {
    ++counters.looped_copies;
    return count_discard(port.counts, Count::kSwitchLifetimeDiscards);
  }
  const std::size_t bytes = packet.size();
  if (send_over_link(out, {.at = *peer,
                           .packet = std::move(packet),
                           .hops = local.hops + 1,
                           .entered = local.entered})) {
    count_sent(port.counts, local.view, bytes);
  }
}

// Returns true if the packet is a copy of a multicast packet that has entered this switch before.
// Otherwise records that it enters the switch.
bool Subnet::Impl::enters_again(PortRef peer, const LocalPacket& local) {
  return local.entered && devices[peer.node].is_switch() && !local.entered->enter(peer.node);
}

void Subnet::Impl::deliver(PortRef port, Qpn destination_qpn, Packet packet) {
  auto& queue = deliveries.of(destination_qpn == wire::kSmiQpn);
  if (queue.size() >= kDeliveriesMax) {
    ++counters.dropped_deliveries;
    if (destination_qpn == wire::kGsiQpn) at(port).counts.add(Count::kQp1Dropped);
    return;
  }
  ++counters.delivered;
  queue.push_back({port, destination_qpn, std::move(packet)});
}

}  // namespace verbena::subnet
