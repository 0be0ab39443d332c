#include "hosts/subnet_switch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ipc/counters.h"
#include "link/infiniband.h"
#include "mad/agents.h"
#include "os/clock.h"
#include "wire/bth.h"
#include "wire/infiniband.h"
#include "wire/mad.h"

namespace verbena::hosts {
namespace {

constexpr std::size_t kWordBytes = 4;
constexpr std::uint16_t kPartitionMask = 0x7fff;

bool has_pkey(const subnet::PortStatus& port, Pkey pkey) {
  return (pkey.value & kPartitionMask) != 0 &&
         std::ranges::find(port.pkeys, pkey) != port.pkeys.end();
}

bool has_gid(const subnet::PortStatus& port, const Gid& gid) {
  for (std::size_t i = 0; i < port.guids.size(); ++i) {
    if (port.guids[i] != Guid{} && port.gid(i) == gid) return true;
  }
  return false;
}

// Lists the receivers of a MAD: the agent of the HCA, the programs that use libibumad, or both.
struct MadReceivers {
  bool agent = false;
  bool programs = true;
};

MadReceivers receivers_of(const subnet::MadDelivery& mad) {
  const auto header =
      wire::decode_exact<wire::MadHeader>(std::span(mad.mad).first<wire::kMadHeaderBytes>());
  if (mad.destination_qpn != wire::kGsiQpn) return {};
  if (header.mgmt_class == wire::MgmtClass::kCommunication)
    return {.agent = true, .programs = false};
  if (header.mgmt_class != wire::MgmtClass::kSubnetAdministration) return {};
  if (header.method == wire::Method::kReport && !header.response) return {.agent = true};
  // Transaction IDs of the SA client have their highest bit set; those of programs do not.
  const bool for_agent = mad::is_response(header) && header.transaction_id >> 63 != 0;
  return {.agent = for_agent, .programs = !for_agent};
}

}  // namespace

Result<std::unique_ptr<SubnetSwitch>> SubnetSwitch::create(asio::io_context& loop,
                                                           subnet::Topology topology) {
  std::unique_ptr<SubnetSwitch> result(new SubnetSwitch(loop, std::move(topology)));
  result->uplinks_ = VB_TRY(agent::Uplinks::create(loop, *result, [] {}));
  return result;
}

SubnetSwitch::SubnetSwitch(asio::io_context& loop, subnet::Topology topology)
    : subnet_(std::move(topology)),
      timer_(loop,
             [this] {
               const Time now = os::now();
               subnet_.advance(now);
               pump(now);
             }),
      delivery_(loop, [this] { notify_stations(); }) {
  const auto& nodes = subnet_.topology().nodes;
  ports_.resize(nodes.size());
  for (std::uint32_t node = 0; node < nodes.size(); ++node) {
    if (!nodes[node].is_hca()) continue;
    for (std::uint8_t number = 1; number <= nodes[node].ports; ++number) {
      ports_[node].push_back(subnet_.status({.node = node, .port = number}));
    }
  }
}

// ---- from HCAs into the subnet ------------------------------------------------------------------

void SubnetSwitch::send(HostIndex hca, const link::Burst& burst, Time now) {
  for (const link::Burst::Packet& packet : burst.packets()) {
    const auto why = send_from(hca, {packet.address, burst.transport(packet)}, now);
    if (why) ++counters_.dropped[static_cast<std::size_t>(*why)];
  }
  pump(now);
}

// Returns the reason if the packet is dropped.  The subnet itself drops and counts a packet from an
// inactive port.
std::optional<SubnetSwitch::Drop> SubnetSwitch::send_from(HostIndex hca,
                                                          const link::Arrival& packet, Time now) {
  link::Address address = packet.address;
  const auto bth = wire::decode<wire::Bth>(packet.headers);
  const subnet::PortRef from{.node = hca, .port = address.port.number};
  if (!bth || !address.is_infiniband() || address.port.device != 0 || from.port == 0 ||
      from.port > ports_[hca].size() || packet.transport.size() % kWordBytes != 0 ||
      packet.transport.size() > link::Lane::kPacketBytesMax ||
      bth->destination_qpn == wire::kSmiQpn) {
    return Drop::kMalformed;
  }
  const subnet::PortStatus& port = status(from);
  if (!has_pkey(port, bth->pkey)) return Drop::kForeignPkey;
  if (address.has_grh && !has_gid(port, address.source)) return Drop::kForeignGid;
  const unsigned path_bits = address.source_lid.value & ((1u << port.lmc) - 1);
  address.source_lid.value = static_cast<std::uint16_t>(port.lid.value | path_bits);
  const bool is_active = port.state == subnet::PortState::kActive;
  std::array<std::byte, link::Lane::kPacketBytesMax> copy;
  const auto transport = std::span(copy).first(packet.transport.size());
  agent::copy_packet(packet, transport);
  subnet_.send(from, link::seal_infiniband(address, transport), now);
  return is_active ? std::nullopt : std::optional(Drop::kInactive);
}

bool SubnetSwitch::pass(const agent::ProgramId& from, const link::Arrival& arrival, Time now,
                        bool may_wait) {
  if (may_wait && is_blocked(from)) return false;
  if (may_wait) sender_ = from;
  const auto why = send_from(from.first, arrival, now);
  pump(now);
  sender_.reset();
  if (why) drop(from, arrival, *why);
  return true;
}

bool SubnetSwitch::is_blocked(const agent::ProgramId& sender) {
  const auto entry = blocked_senders_.find(sender);
  if (entry == blocked_senders_.end()) return false;
  if (waiting_.contains(entry->second)) return true;
  blocked_senders_.erase(entry);
  return false;
}

void SubnetSwitch::drop(const agent::ProgramId& from, const link::Arrival& arrival, Drop why) {
  const auto index = static_cast<std::size_t>(why);
  ++counters_.dropped[index];
  if (std::exchange(reported_drops_[from][index], true))
    return;  // because each reason is reported to a program only once
  const auto station = stations_.find(from.first);
  if (station == stations_.end()) return;
  station->second->notify_user(from.second,
                               "packets are dropped: " + reason(why, from.first, arrival));
}

std::string SubnetSwitch::reason(Drop why, HostIndex hca, const link::Arrival& packet) const {
  const std::string& name = subnet_.topology().nodes[hca].name;
  const unsigned port = packet.address.port.number;
  switch (why) {
    case Drop::kForeignPkey:
      return fmt::format("port {} of {} does not have their P_Key (any more)", port, name);
    case Drop::kForeignGid:
      return fmt::format("port {} of {} does not have their source GID (any more)", port, name);
    case Drop::kInactive:
      return fmt::format("port {} of {} is not active: see ibstat, and run a subnet manager", port,
                         name);
    default: return "they are malformed or addressed to QP0";
  }
}

// ---- from the subnet to HCAs --------------------------------------------------------------------

void SubnetSwitch::pump(Time now) {
  if (std::exchange(is_pumping_, true)) return;
  for (bool has_more = true; has_more;) {
    has_more = false;
    while (auto delivery = subnet_.next_delivery()) {
      deliver(std::move(*delivery), now);
      has_more = true;
    }
    while (const auto event = subnet_.next_event()) {
      if (auto& ports = ports_[event->port.node]; !ports.empty()) {
        ports[event->port.port - std::size_t{1}] = subnet_.status(event->port);
      }
      changed_ports_[event->port] |= event->client_reregister;
      delivery_.schedule();
    }
  }
  timer_.at(subnet_.next_deadline());
  is_pumping_ = false;
}

void SubnetSwitch::deliver(subnet::Delivery delivery, Time now) {
  const Qpn qpn = delivery.destination_qpn;
  if (qpn.value <= wire::kGsiQpn.value) {
    deliver_mad(std::move(delivery));
  } else if (qpn == wire::kMulticastQpn) {
    deliver_to_group(delivery, now);
  } else {
    deliver_to_range(agent::range_of(qpn), std::move(delivery), now);
  }
}

void SubnetSwitch::deliver_mad(subnet::Delivery delivery) {
  const auto mad = subnet_.as_mad(delivery);
  if (!mad) return;
  const MadReceivers receivers = receivers_of(*mad);
  if (receivers.programs) mad_receiver_(*mad);
  if (receivers.agent) deliver_to_agent(std::move(delivery));
}

void SubnetSwitch::deliver_to_agent(subnet::Delivery delivery) {
  if (agent_packets_.size() == kAgentPacketsMax) return void(++counters_.agents_full);
  ++counters_.to_agents;
  agent_packets_.push_back(std::move(delivery));
  delivery_.schedule();
}

void SubnetSwitch::deliver_to_group(const subnet::Delivery& delivery, Time now) {
  const auto arrival = link::open_infiniband(delivery.packet);
  if (!arrival || !arrival->address.has_grh) return;
  groups_.visit(delivery.port.node, delivery.port.port, arrival->address.destination,
                [&](std::uint16_t range) {
                  ++counters_.to_groups;
                  deliver_to_range(range, delivery, now);
                });
}

void SubnetSwitch::deliver_to_range(std::uint16_t range, subnet::Delivery delivery, Time now) {
  if (range == node::Node::kOwnRange) return deliver_to_agent(std::move(delivery));
  const auto receiver = uplinks_->program_of(delivery.port.node, range);
  if (!receiver) return void(++counters_.unknown_qp);
  // The packet waits for space even if no sender is blocked, because the sender may have ended
  // since it sent the packet.
  const bool must_queue = waiting_.contains(*receiver);
  if (!must_queue && try_deliver(*receiver, delivery, now)) return;
  auto& queue = waiting_[*receiver];
  if (queue.size() == kWaitingMax) return void(++counters_.waiting_full);
  queue.push_back(std::move(delivery));
  if (sender_) blocked_senders_[*sender_] = *receiver;
}

Result<void> SubnetSwitch::set_members(HostIndex hca, std::uint16_t range, const Gid& group,
                                       std::span<const std::uint32_t> ports) {
  if (groups_.set(hca, range, group, ports)) {
    if (range == node::Node::kOwnRange) {
      agent_groups_changed_ = true;
      delivery_.schedule();
    }
    return {};
  }
  ++counters_.groups_limit;
  return fail(Errc::kNoResources, "the limit of multicast group members is reached (kMembersMax)",
              ENOMEM);
}

// Returns the packet without its link headers.  Returns nothing if the port does not have the
// destination GID.  The result points into the delivery.
std::optional<link::Arrival> SubnetSwitch::open_delivery(const subnet::Delivery& delivery) {
  auto arrival = link::open_infiniband(delivery.packet);
  if (!arrival) return {};
  const bool is_group = delivery.destination_qpn == wire::kMulticastQpn;
  if (arrival->address.has_grh && !is_group &&
      !has_gid(status(delivery.port), arrival->address.destination)) {
    ++counters_.wrong_gid;
    return {};
  }
  arrival->address.port = {.device = 0, .number = delivery.port.port};
  return *arrival;
}

bool SubnetSwitch::try_deliver(const agent::ProgramId& to, const subnet::Delivery& delivery,
                               Time now) {
  agent::Uplinks::Uplink* const uplink = uplinks_->find(to);
  const auto arrival = open_delivery(delivery);
  if (uplink == nullptr || !arrival) return true;
  return uplinks_->deliver(*uplink, arrival->address, *arrival, now, true);
}

bool SubnetSwitch::deliver_waiting(Time now) {
  bool delivered = false;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    auto& [receiver, queue] = *it;
    while (!queue.empty() && try_deliver(receiver, queue.front(), now)) {
      queue.pop_front();
      delivered = true;
    }
    it = queue.empty() ? waiting_.erase(it) : std::next(it);
  }
  return delivered;
}

bool SubnetSwitch::forward(Time now) {
  const bool delivered = deliver_waiting(now);
  return uplinks_->read(now) || delivered;
}

void SubnetSwitch::detach(const agent::ProgramId& program) {
  uplinks_->detach(program);
  waiting_.erase(program);
  blocked_senders_.erase(program);
  reported_drops_.erase(program);
}

// Reports changed ports to the agents, and passes them the packets that have arrived so far.
// Packets that the agents send in reply wait for the next call.
void SubnetSwitch::notify_stations() {
  const auto changed = std::exchange(changed_ports_, {});
  for (const auto& [port, reregister] : changed) {
    const auto station = stations_.find(port.node);
    if (station != stations_.end()) station->second->port_changed(port.port, reregister);
  }
  const bool groups_changed = std::exchange(agent_groups_changed_, false);
  if (!changed.empty() || groups_changed) on_port_change_();
  for (std::size_t remaining = agent_packets_.size(); remaining > 0; --remaining) {
    const subnet::Delivery packet = std::move(agent_packets_.front());
    agent_packets_.pop_front();
    const auto station = stations_.find(packet.port.node);
    const auto arrival = open_delivery(packet);
    if (station != stations_.end() && arrival) station->second->arrived(*arrival);
  }
}

void SubnetSwitch::add_counters(std::vector<ipc::NamedCount>& out) const {
  static constexpr std::array<const char*, kDrops> kDropNames{
      "dropped_malformed", "dropped_foreign_pkey", "dropped_foreign_source", "dropped_inactive"};
  const auto add = [&](const char* name, std::uint64_t value) { out.push_back({name, value}); };
  const auto& counts = subnet_.counters();
  add("subnet_packets_sent", counts.sent);
  add("subnet_packets_delivered", counts.delivered);
  add("subnet_packets_malformed", counts.malformed);
  add("subnet_too_many_hops", counts.too_many_hops);
  add("subnet_looped_copies", counts.looped_copies);
  add("subnet_not_taken", counts.dropped_deliveries);
  add("subnet_paused_full", counts.paused_queue_full);
  add("late", subnet_.late());
  uplinks_->add_counters(out);
  add("to_nodes", counters_.to_agents);
  for (std::size_t i = 0; i < kDrops; ++i) add(kDropNames[i], counters_.dropped[i]);
  add("dropped_wrong_destination_gid", counters_.wrong_gid);
  add("dropped_unknown_qp", counters_.unknown_qp);
  add("to_groups", counters_.to_groups);
  add("limit_groups", counters_.groups_limit);
  add("dropped_nodes_full", counters_.agents_full);
  add("dropped_waiting_full", counters_.waiting_full);
}

}  // namespace verbena::hosts
