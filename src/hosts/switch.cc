#include "hosts/switch.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ipc/counters.h"
#include "os/clock.h"
#include "wire/bth.h"
#include "wire/ip.h"

namespace verbena::hosts {
namespace {

constexpr Qpn kQp1{1};
constexpr std::size_t kIcrcBytes = link::Burst::kIcrcBytes;

std::size_t ip_bytes(const link::Arrival& arrival) {
  return wire::frame_header_bytes(arrival.address.destination) - wire::kSize<wire::EthernetHeader> +
         arrival.transport.size() + kIcrcBytes;
}

std::vector<std::byte> copy_transport(const link::Arrival& arrival) {
  std::vector<std::byte> transport(arrival.transport.size());
  agent::copy_packet(arrival, transport);
  return transport;
}

}  // namespace

Result<std::unique_ptr<Switch>> Switch::create(asio::io_context& loop, plan::Fabric fabric) {
  std::unique_ptr<Switch> result(new Switch(loop, std::move(fabric)));
  result->uplinks_ = VB_TRY(agent::Uplinks::create(loop, *result, [] {}));
  return result;
}

Switch::Switch(asio::io_context& loop, plan::Fabric fabric)
    : network_(std::move(fabric)),
      late_timer_(loop, [] {}),  // only wakes the loop; the owner then calls forward()
      delivery_(loop, [this] { deliver_to_nodes(); }) {}

// ---- hosts --------------------------------------------------------------------------------------

void Switch::send(HostIndex host, const link::Burst& burst, Time now) {
  for (const link::Burst::Packet& packet : burst.packets()) {
    (void)send_from_host({.host = host}, {packet.address, burst.transport(packet)}, now, false);
  }
}

void Switch::queue_for_node(RailId rail, const link::Arrival& arrival) {
  if (node_packets_.size() == kNodePacketsMax) {
    ++counters_.nodes_full;
    return;
  }
  ++counters_.to_nodes;
  NodePacket packet{.host = rail.host, .address = arrival.address};
  packet.address.interface = 0;  // the sender's interface has no meaning on the receiving host
  packet.address.port = {.device = rail.device, .number = 1};
  packet.transport.resize(arrival.transport.size());
  agent::copy_packet(arrival, packet.transport);
  node_packets_.push_back(std::move(packet));
  delivery_.schedule();
}

// Delivers the packets that wait now.  Packets that result from them wait for the next call.
void Switch::deliver_to_nodes() {
  for (std::size_t remaining = node_packets_.size(); remaining > 0; --remaining) {
    const NodePacket packet = std::move(node_packets_.front());
    node_packets_.pop_front();
    const auto station = stations_.find(packet.host);
    if (station == stations_.end()) continue;
    station->second->arrived({packet.address, packet.transport});
  }
}

// ---- programs -----------------------------------------------------------------------------------

void Switch::detach(const agent::ProgramId& program) {
  uplinks_->detach(program);
  reported_drops_.erase(program);
}

bool Switch::forward(Time now) {
  const auto pass_on = [&](const LatePackets::QueueKey& key, const LatePacket& packet) {
    const link::Arrival arrival{packet.address, packet.transport};
    if (!key.to_host) return transmit(packet.from, arrival, now, true);
    if (!packet.member_range) return deliver(key.rail, arrival, now, true);
    deliver_to_member(key.rail, *packet.member_range, arrival, now);
    return true;
  };
  const bool any_late = !late_.empty() && late_.release(now, network_.faults(), pass_on);
  const bool any_read = uplinks_->read(now);
  late_timer_.at(late_.next_deadline(network_.faults()));
  return any_read || any_late;
}

bool Switch::pass(const agent::ProgramId& from, const link::Arrival& arrival, Time now,
                  bool may_wait) {
  return send_from_host({.host = from.first, .program = from.second}, arrival, now, may_wait);
}

// Handles a packet that a host sends.  The packet becomes a late packet if the host's link is
// slow, if the host is paused, or if earlier packets wait in the same queue.
bool Switch::send_from_host(const Sender& from, const link::Arrival& arrival, Time now,
                            bool may_wait) {
  if (!network_.faults().may_delay_packets() && late_.empty()) {
    return transmit(from, arrival, now, may_wait);
  }
  const link::Address& address = arrival.address;
  const auto use = network_.link_use(from.host, address.source, address.destination);
  const auto key = use ? LatePackets::QueueKey{.stays_in_host = use->stays, .rail = use->rail}
                       : LatePackets::QueueKey{.stays_in_host = true, .rail = {.host = from.host}};
  if (!must_wait(key)) return transmit(from, arrival, now, may_wait);
  add_late(key, {.from = from, .address = address, .transport = copy_transport(arrival)}, now);
  return true;
}

// Forwards a packet after it has left its host.
bool Switch::transmit(const Sender& from, const link::Arrival& arrival, Time now, bool may_wait) {
  if (!wire::decode<wire::Bth>(arrival.headers)) {
    ++counters_.unknown_qp;
    return true;
  }
  if (wire::is_multicast(arrival.address.destination)) {
    deliver_to_members(from, arrival, now);
    return true;
  }
  const auto to = network_.forward(from.host, arrival.address.source, arrival.address.destination,
                                   ip_bytes(arrival));
  if (!to) {
    drop(from, arrival, to.error());
    return true;
  }
  return arrive(*to, from, arrival, now, may_wait);
}

bool Switch::arrive(RailId rail, const Sender& from, const link::Arrival& arrival, Time now,
                    bool may_wait) {
  const LatePackets::QueueKey key{.to_host = true, .rail = rail};
  if (rail.host == from.host || !must_wait(key)) return deliver(rail, arrival, now, may_wait);
  add_late(key, {.from = from, .address = arrival.address, .transport = copy_transport(arrival)},
           now);
  return true;
}

bool Switch::deliver(RailId rail, const link::Arrival& arrival, Time now, bool may_wait) {
  const auto bth = wire::decode<wire::Bth>(arrival.headers);
  VB_CHECK(bth.has_value());  // transmit() drops packets without a BTH
  if (bth->destination_qpn == kQp1) {
    queue_for_node(rail, arrival);
    return true;
  }
  const auto receiver = uplinks_->program_of(rail.host, agent::range_of(bth->destination_qpn));
  if (!receiver) {
    ++counters_.unknown_qp;
    return true;
  }
  return uplinks_->deliver(*uplinks_->find(*receiver), arrival.address, arrival, now, may_wait);
}

void Switch::deliver_to_members(const Sender& from, const link::Arrival& arrival, Time now) {
  for (const auto& member : network_.receivers(from.host, arrival.address.source,
                                               arrival.address.destination, ip_bytes(arrival))) {
    const LatePackets::QueueKey key{.to_host = true, .rail = member.rail};
    if (member.rail.host == from.host || !must_wait(key)) {
      deliver_to_member(member.rail, member.range, arrival, now);
    } else {
      add_late(key,
               {.from = from,
                .address = arrival.address,
                .transport = copy_transport(arrival),
                .member_range = member.range},
               now);
    }
  }
}

void Switch::deliver_to_member(RailId rail, std::uint16_t range, const link::Arrival& arrival,
                               Time now) {
  const auto receiver = uplinks_->program_of(rail.host, range);
  if (!receiver) return;
  // The address of a group does not identify the port at which the packet arrived, so the number of
  // the interface must identify it.
  link::Address address = arrival.address;
  address.interface = ethernet::Network::interface_of(rail.device);
  ++counters_.copies;
  (void)uplinks_->deliver(*uplinks_->find(*receiver), address, arrival, now, false);
}

// ---- late packets -------------------------------------------------------------------------------

bool Switch::must_wait(const LatePackets::QueueKey& key) const {
  const ethernet::LinkFaults& faults = network_.faults();
  return faults.is_paused(key.rail.host) || late_.has_packets(key) ||
         (!key.stays_in_host && faults.delay(key.rail) != Duration{});
}

void Switch::add_late(const LatePackets::QueueKey& key, LatePacket packet, Time now) {
  const Duration delay = key.stays_in_host ? Duration{} : network_.faults().delay(key.rail);
  if (!late_.add(key, std::move(packet), now + delay)) ++counters_.late_full;
}

void Switch::drop(const Sender& from, const link::Arrival& arrival, ethernet::Network::Drop why) {
  ++counters_.dropped[static_cast<std::size_t>(why)];
  if (!from.program) return;
  const agent::ProgramId program{from.host, *from.program};
  if (uplinks_->find(program) == nullptr) return;  // the program has ended since it sent the packet
  const link::Address& address = arrival.address;
  auto& reported = reported_drops_[program];
  if (reported.size() == kReportedDropsMax ||
      !reported.insert({address.source, address.destination}).second) {
    return;
  }
  const auto station = stations_.find(from.host);
  if (station == stations_.end()) return;
  station->second->notify_user(
      *from.program,
      "packets are dropped: " +
          network_.reason(why, from.host, address.source, address.destination, ip_bytes(arrival)));
}

void Switch::add_counters(std::vector<ipc::NamedCount>& out) const {
  static constexpr std::array<const char*, ethernet::Network::kDrops> kDropNames{
      "dropped_foreign_source", "dropped_no_such_address", "dropped_no_route",
      "dropped_too_long",       "dropped_link_down",       "dropped_lossy_link"};
  const auto add = [&](const char* name, std::uint64_t value) { out.push_back({name, value}); };
  uplinks_->add_counters(out);
  add("to_nodes", counters_.to_nodes);
  add("multicast_members", network_.members());
  add("multicast_copies", counters_.copies);
  for (std::size_t i = 0; i < kDropNames.size(); ++i) add(kDropNames[i], counters_.dropped[i]);
  add("dropped_unknown_qp", counters_.unknown_qp);
  add("dropped_nodes_full", counters_.nodes_full);
  add("late", late_.size());
  add("dropped_late_full", counters_.late_full);
}

}  // namespace verbena::hosts
