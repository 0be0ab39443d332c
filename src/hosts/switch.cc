#include "hosts/switch.h"

#include <algorithm>
#include <array>
#include <cstring>

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

}  // namespace

Result<std::unique_ptr<Switch>> Switch::create(asio::io_context& loop, plan::Fabric fabric) {
  std::unique_ptr<Switch> made(new Switch(loop, std::move(fabric)));
  made->uplinks_ = VB_TRY(Uplinks::create(loop, *made));
  return made;
}

Switch::Switch(asio::io_context& loop, plan::Fabric fabric)
    : network_(std::move(fabric)), delivery_(loop, [this] { deliver_to_nodes(); }) {}

// ---- hosts --------------------------------------------------------------------------------------

void Switch::send(HostIndex host, const link::Burst& burst) {
  for (const link::Burst::Packet& packet : burst.packets()) {
    const link::Arrival arrival{packet.address, burst.transport(packet)};
    const auto to = network_.forward(host, packet.address.source, packet.address.destination,
                                     ip_bytes(arrival));
    if (to) {
      to_node(*to, arrival);
    } else {
      ++counters_.dropped[static_cast<std::size_t>(to.error())];
    }
  }
}

void Switch::to_node(RailId rail, const link::Arrival& arrival) {
  if (node_packets_.size() == kNodePacketsMax) {
    ++counters_.nodes_full;
    return;
  }
  ++counters_.to_nodes;
  NodePacket packet{.host = rail.host, .address = arrival.address};
  packet.address.interface = 0;  // as for packets from a socket; it is the sender's
  packet.address.port = {.device = rail.device, .number = 1};
  packet.transport.resize(arrival.transport.size());
  copy_packet(arrival, packet.transport);
  node_packets_.push_back(std::move(packet));
  delivery_.schedule();
}

// Delivers the packets that wait now.  Those that result from them wait for the next call.
void Switch::deliver_to_nodes() {
  for (std::size_t left = node_packets_.size(); left > 0; --left) {
    const NodePacket packet = std::move(node_packets_.front());
    node_packets_.pop_front();
    const auto station = stations_.find(packet.host);
    if (station == stations_.end()) continue;
    station->second->arrived({packet.address, packet.transport});
  }
}

// ---- programs -----------------------------------------------------------------------------------

void Switch::detach(const ProgramId& program) {
  uplinks_->detach(program);
  remarks_.erase(program);
}

bool Switch::pass(const ProgramId& from, const link::Arrival& arrival, Time now, bool may_wait) {
  const auto bth = wire::decode<wire::Bth>(arrival.headers);
  if (!bth) {
    ++counters_.to_nobody;
    return true;
  }
  if (wire::is_multicast(arrival.address.destination)) {
    to_members(from, arrival, now);
    return true;
  }
  const auto to = network_.forward(from.first, arrival.address.source, arrival.address.destination,
                                   ip_bytes(arrival));
  if (!to) {
    drop(from, arrival, to.error());
    return true;
  }
  if (bth->destination_qpn == kQp1) {
    to_node(*to, arrival);
    return true;
  }
  const auto receiver = uplinks_->program_of(to->host, range_of(bth->destination_qpn));
  if (!receiver) {
    ++counters_.to_nobody;
    return true;
  }
  return uplinks_->put(*uplinks_->find(*receiver), arrival.address, arrival, now, may_wait);
}

void Switch::to_members(const ProgramId& from, const link::Arrival& arrival, Time now) {
  const auto& [host, client] = from;
  link::Address address = arrival.address;
  for (const auto& member : network_.receivers(host, arrival.address.source,
                                               arrival.address.destination, ip_bytes(arrival))) {
    const auto receiver = uplinks_->program_of(member.rail.host, member.range);
    if (!receiver) continue;
    // Tells the program by which port the packet came: the group does not.
    address.interface = ethernet::Network::interface_of(member.rail.device);
    ++counters_.copies;
    (void)uplinks_->put(*uplinks_->find(*receiver), address, arrival, now, false);
  }
}

void Switch::drop(const ProgramId& from, const link::Arrival& arrival,
                  ethernet::Network::Drop why) {
  ++counters_.dropped[static_cast<std::size_t>(why)];
  const link::Address& address = arrival.address;
  auto& remarks = remarks_[from];
  if (remarks.size() == kRemarksMax ||
      !remarks.insert({address.source, address.destination}).second) {
    return;
  }
  const auto station = stations_.find(from.first);
  if (station == stations_.end()) return;
  station->second->remark(from.second, "packets are dropped: " +
                                           network_.reason(why, from.first, address.source,
                                                           address.destination, ip_bytes(arrival)));
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
  add("dropped_unknown_qp", counters_.to_nobody);
  add("dropped_nodes_full", counters_.nodes_full);
}

}  // namespace verbena::hosts
