#include "subnet/subnet.h"

#include <algorithm>
#include <utility>

#include "subnet/impl.h"
#include "wire/bth.h"

namespace verbena::subnet {

Subnet::Impl::Impl(Topology t)
    : topology(std::move(t)),
      devices(topology.nodes.begin(), topology.nodes.end()),
      links(topology, devices) {}

Subnet::Subnet(Topology topology) {
  VB_CHECK(!find_problem(topology));
  impl_ = std::make_unique<Impl>(std::move(topology));
}
Subnet::Subnet(Subnet&&) noexcept = default;
Subnet& Subnet::operator=(Subnet&&) noexcept = default;
Subnet::~Subnet() = default;

Gid PortStatus::gid(std::size_t index) const {
  Gid gid{};
  const std::uint64_t guid = guids[index].value;
  if (guid == 0) return gid;
  for (std::size_t i = 0; i < 8; ++i) {
    gid.bytes[i] = static_cast<std::byte>(gid_prefix >> (56 - 8 * i));
    gid.bytes[8 + i] = static_cast<std::byte>(guid >> (56 - 8 * i));
  }
  return gid;
}

const Topology& Subnet::topology() const { return impl_->topology; }
const Subnet::Counters& Subnet::counters() const { return impl_->counters; }

void Subnet::send(PortRef from, Packet packet, Time now) {
  VB_CHECK(!impl_->devices[from.node].is_switch());
  impl_->set_now(now);
  if (!impl_->links.has_power(from.node)) return;
  impl_->send(from, std::move(packet));
  impl_->run();
}

Result<void> Subnet::send_mad(PortRef from, const mad::SendMad& request, Time now) {
  const DevicePort& port = impl_->at(from);
  const bool is_smp = request.to.remote_qpn == wire::kSmiQpn;
  if (!is_smp && request.to.pkey_index >= port.pkeys.size()) {
    return fail(Errc::kInvalidArgument, "no such P_Key index");
  }
  const unsigned path_bits = request.to.path.source_lid.value & ((1u << port.info.lmc) - 1);
  OpenMad mad{.address = request.to.path,
              .pkey = is_smp ? wire::kDefaultPkey : port.pkeys[request.to.pkey_index],
              .qkey = is_smp ? Qkey{} : wire::kGsiQkey,
              .source_qpn = is_smp ? wire::kSmiQpn : wire::kGsiQpn,
              .destination_qpn = request.to.remote_qpn,
              .mad = request.mad};
  mad.address.link_layer = LinkLayer::kInfiniband;
  mad.address.source_lid.value = static_cast<std::uint16_t>(port.info.lid.value | path_bits);
  send(from, seal_mad(mad), now);
  return {};
}

std::optional<Delivery> Subnet::next_delivery() {
  auto& deliveries = impl_->deliveries;
  if (deliveries.empty()) return std::nullopt;
  auto& queue = deliveries.next();
  Delivery delivery = std::move(queue.front());
  queue.pop_front();
  return delivery;
}

std::optional<PortEvent> Subnet::next_event() {
  auto& events = impl_->events;
  if (events.empty()) return std::nullopt;
  const auto event = events.extract(events.begin());
  return PortEvent{.port = event.key(), .client_reregister = event.mapped()};
}

std::optional<MadDelivery> Subnet::as_mad(const Delivery& delivery) const {
  if (delivery.destination_qpn.value > wire::kGsiQpn.value) return std::nullopt;
  const auto view = view_packet(delivery.packet);
  if (!view) return std::nullopt;
  const auto mad = open_mad(delivery.packet, *view);
  if (!mad) return std::nullopt;
  const auto& pkeys = impl_->at(delivery.port).pkeys;
  const auto pkey =
      std::ranges::find_if(pkeys, [&](Pkey entry) { return wire::pkeys_match(entry, mad->pkey); });
  mad::Address from{.path = mad->address.reversed(), .remote_qpn = mad->source_qpn};
  if (pkey != pkeys.end()) from.pkey_index = static_cast<std::uint16_t>(pkey - pkeys.begin());
  return MadDelivery{.port = delivery.port,
                     .destination_qpn = delivery.destination_qpn,
                     .from = from,
                     .mad = mad->mad};
}

PortStatus Subnet::status(PortRef port) const {
  const DevicePort& device_port = impl_->at(port);
  const wire::PortInfo& info = device_port.info;
  return {.state = info.port_state,
          .physical_state = info.port_physical_state,
          .lid = info.lid,
          .lmc = info.lmc,
          .sm_lid = info.master_sm_lid,
          .sm_sl = info.master_sm_sl,
          .capability_mask = info.capability_mask,
          .gid_prefix = info.gid_prefix,
          .mtu_active = Mtu{info.neighbor_mtu},
          .mtu_max = Mtu{info.mtu_cap},
          .width_active = active_width(info),
          .speed_active = impl_->links.active_speed(port),
          .subnet_timeout = info.subnet_timeout,
          .max_virtual_lanes = lanes_of_code(info.vl_cap),
          .pkey_violations = info.p_key_violations,
          .qkey_violations = info.q_key_violations,
          .guids = device_port.guids,
          .pkeys = device_port.pkeys};
}

PortState Subnet::state(PortRef port) const { return impl_->at(port).info.port_state; }

void Subnet::set_is_sm(PortRef port, bool is_sm, Time now) {
  impl_->set_now(now);
  wire::PortInfo& info = impl_->at(port).info;
  const std::uint32_t old_mask = info.capability_mask;
  if (is_sm) {
    info.capability_mask |= wire::port_capability::kIsSm;
  } else {
    info.capability_mask &= ~wire::port_capability::kIsSm;
  }
  if (info.capability_mask == old_mask) return;
  impl_->report(port);
  impl_->add_trap(port.node, port.port, wire::NoticeType::kInformational,
                  wire::TrapNumber::kLocalChange,
                  wire::encode(wire::LocalChange{.lid = info.lid,
                                                 .capability_mask = info.capability_mask,
                                                 .capability_mask2 = info.capability_mask2}));
  impl_->run();
}

Time Subnet::next_deadline() const { return impl_->next_deadline(); }

void Subnet::advance(Time now) {
  impl_->set_now(now);
  impl_->run();
}

}  // namespace verbena::subnet
