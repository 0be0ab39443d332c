#include <algorithm>

#include "subnet/impl.h"
#include "wire/headers.h"
#include "wire/icrc.h"

namespace verbena::subnet {
namespace {

constexpr Duration kTrapIntervalMin = std::chrono::milliseconds(100);

// Holds the fields that a notice about a wrong P_Key or Q_Key takes from the packet.
struct KeyDetails {
  Qpn source_qpn{};
  Qkey qkey{};
  bool has_deth = false;
  Gid source{};
  Gid destination{};
  bool has_gids = false;
};

KeyDetails key_details(std::span<const std::byte> packet, const PacketView& view) {
  KeyDetails details;
  const auto transport = wire::parse_transport(
      packet.subspan(view.bth_offset, packet.size() - view.bth_offset - wire::kIcrcBytes));
  if (transport && wire::carries_deth(transport->bth.opcode)) {
    details.has_deth = true;
    details.source_qpn = transport->deth.source_qpn;
    details.qkey = transport->deth.qkey;
  }
  if (view.lrh.next_header == wire::LinkNextHeader::kGrh) {
    const auto grh = wire::decode_exact<wire::Ipv6Header>(
        packet.subspan<wire::kSize<wire::Lrh>, wire::kSize<wire::Ipv6Header>>());
    details.has_gids = true;
    details.source = grh.source;
    details.destination = grh.destination;
  }
  return details;
}

}  // namespace

void Subnet::Impl::report(PortRef port, bool client_reregister) {
  events[port] |= client_reregister;
}

void Subnet::Impl::on_power_change(std::uint32_t node) {
  traps_.erase(node);
  std::erase_if(leases_, [&](PortRef port) { return port.node == node; });
  for (unsigned port = 1; port <= devices[node].port_count(); ++port) {
    report({node, static_cast<std::uint8_t>(port)});
  }
}

// Reports links that have come up or gone down.  A switch sends trap 128 to its manager (vol1
// 14.2.5.4).
void Subnet::Impl::report_changes(const std::vector<PortRef>& changed) {
  for (const PortRef port : changed) {
    drop_packets_on(port);
    report(port);
    Device& device = devices[port.node];
    if (!device.is_switch() || !links.has_power(port.node)) continue;
    device.switch_info.port_state_change = true;
    add_trap(port.node, 0, wire::NoticeType::kUrgent, wire::TrapNumber::kLinkStateChange,
             wire::encode(wire::LinkStateChange{.switch_lid = device.ports[0].info.lid}));
  }
}

// Adds a trap.  Does nothing if no manager has configured the port yet.
void Subnet::Impl::add_trap(std::uint32_t node, std::uint8_t port, wire::NoticeType type,
                            wire::TrapNumber number,
                            const std::array<std::byte, wire::kNoticeDetailsBytes>& details) {
  const wire::PortInfo& info = at({node, port}).info;
  if (info.master_sm_lid.value == 0 || info.lid.value == 0) return;
  traps_[node].add({.type = type,
                    .producer = static_cast<std::uint32_t>(devices[node].node_info.node_type),
                    .trap_number = number,
                    .issuer = info.lid,
                    .details = details},
                   port, now_);
}

void Subnet::Impl::add_key_violation(PortRef port, Violation kind,
                                     std::span<const std::byte> packet, const PacketView& view) {
  wire::PortInfo& info = at(port).info;
  std::uint16_t& count = kind == Violation::kPkey ? info.p_key_violations : info.q_key_violations;
  if (count != 0xffff) ++count;
  const KeyDetails details = key_details(packet, view);
  add_trap(port.node, port.port, wire::NoticeType::kSecurity,
           kind == Violation::kPkey ? wire::TrapNumber::kBadPkey : wire::TrapNumber::kBadQkey,
           wire::encode(
               wire::BadKey{.source = view.lrh.source,
                            .destination = view.lrh.destination,
                            .key = kind == Violation::kPkey ? view.pkey.value : details.qkey.value,
                            .service_level = view.lrh.service_level,
                            .source_qpn = details.source_qpn,
                            .destination_qpn = view.destination_qpn,
                            .source_gid = details.source,
                            .destination_gid = details.destination}));
}

void Subnet::Impl::add_switch_violation(std::uint8_t port, const LocalPacket& local) {
  using wire::BadPkeyAtSwitch;
  const KeyDetails details = key_details(local.packet, local.view);
  BadPkeyAtSwitch bad{.data_valid = BadPkeyAtSwitch::kLidsValid | BadPkeyAtSwitch::kPkeyValid |
                                    BadPkeyAtSwitch::kServiceLevelValid |
                                    BadPkeyAtSwitch::kDestinationQpnValid,
                      .source = local.view.lrh.source,
                      .destination = local.view.lrh.destination,
                      .pkey = local.view.pkey,
                      .service_level = local.view.lrh.service_level,
                      .source_qpn = details.source_qpn,
                      .destination_qpn = local.view.destination_qpn,
                      .source_gid = details.source,
                      .destination_gid = details.destination,
                      .switch_lid = devices[local.port.node].ports[0].info.lid,
                      .port = port};
  if (details.has_deth) bad.data_valid |= BadPkeyAtSwitch::kSourceQpnValid;
  if (details.has_gids) bad.data_valid |= BadPkeyAtSwitch::kGidsValid;
  add_trap(local.port.node, 0, wire::NoticeType::kSecurity, wire::TrapNumber::kBadPkeyAtSwitch,
           wire::encode(bad));
}

void Subnet::Impl::send_due_traps() {
  for (auto& [node, traps] : traps_) {
    if (impairments.is_paused(node)) continue;
    while (Traps::Trap* trap = traps.due(now_)) {
      const wire::PortInfo& info = at({node, trap->port}).info;
      trap->next_send = now_ + std::max(kTrapIntervalMin, timeout_of_code(info.subnet_timeout));
      wire::Smp smp{.header = {.mgmt_class = wire::MgmtClass::kSubnetManagementLid,
                               .class_version = 1,
                               .method = wire::Method::kTrap,
                               .transaction_id = trap->transaction_id,
                               .attribute_id = std::to_underlying(wire::SmpAttribute::kNotice)},
                    .m_key = info.m_key,
                    .data = wire::smp_data(trap->notice)};
      Packet packet = seal_mad({.address = {.link_layer = LinkLayer::kInfiniband,
                                            .source_lid = info.lid,
                                            .destination_lid = info.master_sm_lid,
                                            .service_level = info.master_sm_sl},
                                .pkey = wire::kDefaultPkey,
                                .mad = wire::encode(smp)});
      const auto view = view_packet(packet);
      VB_CHECK(view.has_value());
      forward({{node, trap->port}, packet, *view, 0});
    }
  }
}

void Subnet::Impl::end_due_leases() {
  for (auto it = leases_.begin(); it != leases_.end();) {
    DevicePort& port = at(*it);
    if (port.m_key_lease_end > now_) {
      ++it;
      continue;
    }
    port.m_key_lease_end = kNever;
    port.info.m_key_protect_bits = 0;
    it = leases_.erase(it);
  }
}

Time Subnet::Impl::next_deadline() const {
  Time next = impairments.next_deadline();
  for (const auto& [node, traps] : traps_) {
    if (!impairments.is_paused(node)) next = std::min(next, traps.next_deadline());
  }
  for (const PortRef port : leases_) next = std::min(next, at(port).m_key_lease_end);
  return next;
}

}  // namespace verbena::subnet
