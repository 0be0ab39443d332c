#include <algorithm>
#include <utility>

#include "subnet/directed_route.h"
#include "subnet/impl.h"
#include "subnet/pma.h"

namespace verbena::subnet {
namespace {

using wire::Method;
using wire::MgmtClass;
using wire::Smp;
using wire::SmpAttribute;
using namespace wire::mad_status;

constexpr std::uint8_t kSmClassVersion = wire::class_version(MgmtClass::kSubnetManagementLid);

constexpr bool is_request(const wire::MadHeader& header) {
  return !header.response && (header.method == Method::kGet || header.method == Method::kSet);
}

}  // namespace

void Subnet::Impl::receive_smp(const LocalPacket& local, bool begins_here) {
  const auto mad = open_mad(local.packet, local.view);
  if (!mad) {
    at(local.port).counts.add(Count::kRcvErrors);
    return at(local.port).counts.add(Count::kMalformedPackets);
  }
  Smp smp = wire::decode_exact<Smp>(mad->mad);
  if (smp.is_directed()) {
    // The LID-routed part of the route ends at this node, so the directed part begins here.
    const bool came_by_lid = local.view.lrh.destination != wire::kPermissiveLid;
    return step_directed(local, smp, begins_here || came_by_lid);
  }
  const bool leaves_node = begins_here && !devices[local.port.node].is_switch() &&
                           !at(local.port).has_lid(local.view.lrh.destination);
  if (leaves_node) return send_out(local.port, std::move(local.packet), local);
  receive_local_smp(local, smp);
}

void Subnet::Impl::step_directed(const LocalPacket& local, Smp& smp, bool begins_here) {
  const Device& device = devices[local.port.node];
  // A route may begin with a LID-routed part, before the directed part.
  const bool starts_by_lid = begins_here && !device.is_switch() &&
                             local.view.lrh.destination != wire::kPermissiveLid &&
                             !at(local.port).has_lid(local.view.lrh.destination);
  if (starts_by_lid) return send_out(local.port, std::move(local.packet), local);

  const RouteStep step = directed_route_step(smp, {.is_switch = device.is_switch(),
                                                   .ports = device.port_count(),
                                                   .in_port = local.port.port,
                                                   .begins_here = begins_here});
  replace_smp(local.packet, local.view, smp);
  switch (step.kind) {
    case RouteStep::Kind::kDiscard: return;
    case RouteStep::Kind::kLocal: return receive_local_smp(local, smp);
    case RouteStep::Kind::kForward:
      set_lids(local.packet, wire::kPermissiveLid, wire::kPermissiveLid);
      return send_out({local.port.node, step.port}, std::move(local.packet), local);
    case RouteStep::Kind::kToLid: {
      set_lids(local.packet, device.management_port(local.port.port).info.lid, step.lid);
      LocalPacket forwarded = local;
      forwarded.view.lrh.destination = step.lid;
      if (device.is_switch()) forwarded.port.port = 0;
      return forward(forwarded);
    }
  }
}

void Subnet::Impl::receive_local_smp(const LocalPacket& local, Smp& smp) {
  const bool is_switch = devices[local.port.node].is_switch();
  const bool is_sm =
      !is_switch && (at(local.port).info.capability_mask & wire::port_capability::kIsSm) != 0;
  const bool is_for_sm =
      smp.header.attribute_id == std::to_underlying(SmpAttribute::kSmInfo) && is_sm;
  const bool is_for_agent =
      is_request(smp.header) || (!smp.header.response && smp.header.method == Method::kTrapRepress);
  if (is_for_sm || !is_for_agent) {
    if (is_switch) return;  // no manager runs on a switch
    refresh_icrc(local.packet);
    return deliver(local.port, wire::kSmiQpn, std::move(local.packet));
  }
  if (smp.header.base_version != wire::kMadBaseVersion ||
      smp.header.class_version != kSmClassVersion) {
    return return_smp(local, smp, kBadVersion);
  }
  if (!check_m_key(local, smp)) return;
  if (smp.header.method == Method::kTrapRepress) {
    const auto found = traps_.find(local.port.node);
    if (found == traps_.end()) return;
    found->second.repress(smp.header.transaction_id);
    if (found->second.next_deadline() == kNever) traps_.erase(found);
    return;
  }
  answer_smp(local, smp);
}

// Answers a request.  If the request changes the state of a link, the answer contains the new
// state.  The answer is sent before the change, because the change may take down the link that the
// answer uses.
void Subnet::Impl::answer_smp(const LocalPacket& local, Smp& smp) {
  SmaEffects effects;
  const std::uint16_t status = execute(local, smp, effects);
  return_smp(local, smp, status);
  if (status != 0) return;
  if (effects.link_change) {
    std::vector<PortRef> changed;
    links.set_physical_state({local.port.node, effects.link_change->port},
                             effects.link_change->physical_state, changed);
    report_changes(changed);
  }
  if (effects.changed_port) {
    report({local.port.node, *effects.changed_port}, effects.client_reregister);
  }
}

// Carries out a Get or Set, and replaces the data of the SMP with the data of the answer.  Returns
// the status of the answer.
std::uint16_t Subnet::Impl::execute(const LocalPacket& local, Smp& smp, SmaEffects& effects) {
  Device& device = devices[local.port.node];
  const SmaRequest request{.in_port = local.port.port,
                           .attribute_id = smp.header.attribute_id,
                           .modifier = smp.header.attribute_modifier};
  if (smp.header.method == Method::kSet) {
    const std::uint16_t status = sma_set(device, request, smp.data, effects);
    if (status != 0) return status;
  }
  if (!effects.link_change) {
    const std::uint16_t status = sma_get(device, request, smp.data);
    if (status == 0 && request.attribute_id == std::to_underlying(SmpAttribute::kPortInfo)) {
      auto info = wire::from_smp_data<wire::PortInfo>(smp.data);
      info.client_reregister = effects.client_reregister;
      const auto& port_info = device.management_port(local.port.port).info;
      if (port_info.m_key_protect_bits == 1 && port_info.m_key != smp.m_key) info.m_key = 0;
      smp.data = wire::smp_data(info);
    }
    return status;
  }
  wire::PortInfo& info = device.ports[effects.link_change->port].info;
  const wire::PortInfo saved_info = info;
  info.port_state = PortState::kDown;
  info.port_physical_state = effects.link_change->physical_state;
  const std::uint16_t status = sma_get(device, request, smp.data);
  info = saved_info;
  return status;
}

// Sends an SMP back as the answer.
void Subnet::Impl::return_smp(const LocalPacket& local, Smp& smp, std::uint16_t status) {
  auto mad = open_mad(local.packet, local.view);
  VB_CHECK(mad.has_value());
  smp.header.response = true;
  smp.header.method = Method::kGet;
  smp.header.status = status;
  if (smp.is_directed()) smp.header.status |= wire::kSmpReturning;
  mad->address = mad->address.reversed();
  if (smp.is_directed()) mad->address.destination_lid = wire::kPermissiveLid;
  std::swap(mad->source_qpn, mad->destination_qpn);
  mad->mad = wire::encode(smp);
  Packet packet = seal_mad(*mad);
  const auto view = view_packet(packet);
  VB_CHECK(view.has_value());
  const LocalPacket answer{local.port, packet, *view, 0};
  if (smp.is_directed()) return step_directed(answer, smp, true);
  if (!devices[local.port.node].is_switch()) return send_from_hca(answer);
  LocalPacket from_port_0 = answer;
  from_port_0.port.port = 0;
  forward(from_port_0);
}

// Returns true if the port accepts the M_Key of an SMP.  A wrong M_Key is counted and reported by a
// trap, and the SMP gets no answer (vol1 14.2.4).
bool Subnet::Impl::check_m_key(const LocalPacket& local, const Smp& smp) {
  const Device& device = devices[local.port.node];
  const PortRef owner{local.port.node, device.management_port_number(local.port.port)};
  DevicePort& port = at(owner);
  if (m_key_allows(port.info, smp.header.method, smp.m_key)) {
    if (port.info.m_key == smp.m_key && leases_.erase(owner) != 0) port.m_key_lease_end = kNever;
    return true;
  }
  if (port.info.m_key_violations != 0xffff) ++port.info.m_key_violations;
  if (port.info.m_key_lease_period != 0 && port.m_key_lease_end == kNever) {
    port.m_key_lease_end = now_ + std::chrono::seconds(port.info.m_key_lease_period);
    leases_.insert(owner);
  }
  wire::BadMkey details{.lid = local.view.lrh.source,
                        .method = std::to_underlying(smp.header.method),
                        .attribute_id = smp.header.attribute_id,
                        .attribute_modifier = smp.header.attribute_modifier,
                        .m_key = smp.m_key};
  if (smp.is_directed()) {
    const std::size_t hops = smp.hop_count();
    details.is_directed = true;
    details.dr_source = smp.dr_source;
    details.path_is_truncated = hops > details.return_path.size();
    details.hop_count = static_cast<std::uint8_t>(hops);
    std::copy_n(smp.return_path.begin() + 1, std::min(hops, details.return_path.size()),
                details.return_path.begin());
  }
  add_trap(owner.node, owner.port, wire::NoticeType::kSecurity, wire::TrapNumber::kBadMkey,
           wire::encode(details));
  return false;
}

void Subnet::Impl::receive_gmp(const LocalPacket& local) {
  const Device& device = devices[local.port.node];
  auto mad = open_mad(local.packet, local.view);
  if (!mad) {
    if (!device.is_switch()) deliver(local.port, wire::kGsiQpn, std::move(local.packet));
    return;
  }
  const PortRef owner{local.port.node, device.management_port_number(local.port.port)};
  if (mad->qkey != wire::kGsiQkey) {
    return add_key_violation(owner, Violation::kQkey, local.packet, local.view);
  }
  const auto header =
      wire::decode_exact<wire::MadHeader>(std::span(mad->mad).first<wire::kMadHeaderBytes>());
  if (is_request(header) && header.mgmt_class == MgmtClass::kPerformance) {
    const auto data = std::span(mad->mad).last<wire::kPerformanceDataBytes>();
    return answer_gmp(local, *mad, pma_answer(devices[local.port.node], header, data));
  }
  if (!device.is_switch()) return deliver(local.port, wire::kGsiQpn, std::move(local.packet));
  if (is_request(header)) answer_gmp(local, *mad, kMethodAttributeNotSupported);
}

void Subnet::Impl::answer_gmp(const LocalPacket& local, OpenMad& mad, std::uint16_t status) {
  const auto header_bytes = std::span(mad.mad).first<wire::kMadHeaderBytes>();
  auto header = wire::decode_exact<wire::MadHeader>(header_bytes);
  header.response = true;
  header.method = Method::kGet;
  header.status = status;
  wire::encode_to(header_bytes, header);
  mad.address = mad.address.reversed();
  mad.qkey = wire::kGsiQkey;
  mad.pkey = devices[local.port.node].management_port(local.port.port).own_pkey(mad.pkey);
  std::swap(mad.source_qpn, mad.destination_qpn);
  Packet packet = seal_mad(mad);
  const auto view = view_packet(packet);
  VB_CHECK(view.has_value());
  LocalPacket answer{local.port, packet, *view, 0};
  if (devices[local.port.node].is_switch()) answer.port.port = 0;
  forward(answer);
}

}  // namespace verbena::subnet
