// Implements the faults that a user requests: cables, power, pauses, losses, delays, MTUs, P_Keys.
#include <algorithm>
#include <utility>

#include "subnet/impl.h"

namespace verbena::subnet {

void Subnet::set_link(std::size_t link, bool up, Time now) {
  impl_->set_now(now);
  std::vector<PortRef> changed;
  impl_->links.set_plugged(link, up, changed);
  impl_->report_changes(changed);
  impl_->run();
}

bool Subnet::link_is_up(std::size_t link) const {
  return impl_->links.peer(impl_->topology.links[link].a).has_value();
}

void Subnet::set_power(std::uint32_t node, bool on, Time now) {
  impl_->set_now(now);
  std::vector<PortRef> changed;
  (void)impl_->impairments.resume(node);  // drops the packets that waited at the node
  if (impl_->links.has_power(node) == on) return impl_->run();
  impl_->links.set_power(node, on, changed);
  impl_->report_changes(changed);
  impl_->on_power_change(node);
  impl_->run();
}

void Subnet::set_paused(std::uint32_t node, bool paused, Time now) {
  impl_->set_now(now);
  if (paused) {
    if (impl_->links.has_power(node)) impl_->impairments.pause(node);
  } else if (auto stored = impl_->impairments.resume(node)) {
    impl_->send_stored(std::move(*stored));
  }
  impl_->run();
}

bool Subnet::is_paused(std::uint32_t node) const { return impl_->impairments.is_paused(node); }

void Subnet::set_loss(std::size_t link, const faults::Loss& loss) {
  impl_->impairments.set_loss(link, loss);
}

void Subnet::set_delay(std::size_t link, Duration delay) {
  impl_->impairments.set_delay(impl_->topology.links[link].a, delay);
  impl_->impairments.set_delay(impl_->topology.links[link].b, delay);
}

void Subnet::set_mtu(std::size_t link, std::optional<Mtu> mtu, Time now) {
  impl_->set_now(now);
  std::vector<PortRef> changed;
  impl_->links.set_mtu(link, mtu.value_or(impl_->topology.links[link].mtu), changed);
  for (const PortRef end : {impl_->topology.links[link].a, impl_->topology.links[link].b}) {
    impl_->report(end);
  }
  impl_->report_changes(changed);
  impl_->run();
}

bool Subnet::remove_pkey(PortRef port, Pkey pkey) {
  auto& pkeys = impl_->at(port).pkeys;
  const auto found = std::ranges::find(pkeys, pkey);
  if (pkey == Pkey{} || found == pkeys.end()) return false;
  *found = {};
  impl_->report(port);
  return true;
}

bool Subnet::add_pkey(PortRef port, Pkey pkey) {
  auto& pkeys = impl_->at(port).pkeys;
  if (std::ranges::find(pkeys, pkey) != pkeys.end()) return true;
  const auto free_entry = std::ranges::find(pkeys, Pkey{});
  if (free_entry == pkeys.end()) return false;
  *free_entry = pkey;
  impl_->report(port);
  return true;
}

std::size_t Subnet::late() const { return impl_->impairments.late(); }

// ---- packets ------------------------------------------------------------------------------------

// Sends a packet over the link at this port.  The port at the other end counts a packet that the
// link loses, as if the packet had arrived damaged (vol1 16.1.3.5).  Returns false, and counts the
// packet as discarded, if the queue of a slow link is full.
bool Subnet::Impl::send_over_link(PortRef out, InFlight packet) {
  if (impairments.should_drop_next(links.link_of(out))) {
    Counts& counts = at(packet.at).counts;
    counts.add(Count::kSymbolErrors);
    counts.add(Count::kRcvErrors);
    counts.add(Count::kLocalPhysicalErrors);
    return true;
  }
  if (!impairments.is_slow(out)) {
    in_flight_.of(uses_management_lane(packet.packet)).push_back(std::move(packet));
    return true;
  }
  if (impairments.delay(out, std::move(packet), now_)) return true;
  // The port counts the packet as one that has waited too long for credits.
  Counts& counts = at(out).counts;
  counts.add(Count::kXmitDiscards);
  counts.add(Count::kSwitchHoqLifetimeDiscards);
  return false;
}

// Stores or drops a packet that arrives at a paused node.  Returns false if the node is not paused.
bool Subnet::Impl::store_arrived(InFlight& packet, bool is_management) {
  Impairments::DelayLine* const line = impairments.arrived_line(packet.at.node, is_management);
  if (line == nullptr) return false;
  const PortRef port = packet.at;
  if (line->push(std::move(packet), now_)) return true;
  Counts& counts = at(port).counts;
  if (is_management) {
    counts.add(Count::kVl15Dropped);
  } else {
    counts.add(Count::kRcvErrors);
    counts.add(Count::kBufferOverruns);
    counts.add(Count::kExcessiveBufferOverrunErrors);
  }
  return true;
}

// Stores or drops a packet that a paused node sends.  Returns false if the node is not paused.
bool Subnet::Impl::store_sent(PortRef from, Packet& packet, bool is_smp) {
  Impairments::DelayLine* const line = impairments.sent_line(from.node, is_smp);
  if (line == nullptr) return false;
  if (!line->push({.at = from, .packet = std::move(packet)}, now_)) ++counters.paused_queue_full;
  return true;
}

void Subnet::Impl::send_stored(Impairments::StoredPackets stored) {
  for (const bool is_smp : {true, false}) {
    auto& line = stored.arrived.of(is_smp);
    while (!line.empty()) in_flight_.of(is_smp).push_back(line.pop());
  }
  while (!stored.sent.empty()) {
    InFlight in_flight = stored.sent.next().pop();
    send(in_flight.at, std::move(in_flight.packet));
  }
}

// Drops and counts the packets that a port has sent over a slow link that goes down.
void Subnet::Impl::drop_packets_on(PortRef out) {
  const std::size_t lost = impairments.drop(out);
  if (lost == 0) return;
  at(out).counts.add(Count::kXmitDiscards, lost);
  at(out).counts.add(Count::kInactiveDiscards, lost);
}

}  // namespace verbena::subnet
