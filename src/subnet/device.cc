#include "subnet/device.h"

#include <algorithm>
#include <bit>

#include "wire/bth.h"

namespace verbena::subnet {
namespace {

using wire::PortInfo;
using wire::PortPhysicalState;
using wire::PortState;

constexpr std::uint8_t kVlCap0To7 = 4;
constexpr std::uint8_t kSpeedsBeforeExtended = 3;  // SDR, DDR, QDR
constexpr std::uint32_t kRevision = 1;
constexpr std::uint8_t kDefaultSubnetTimeout = 18;  // 1.07 s
constexpr std::uint8_t kDefaultRespTime = 16;       // 268 ms

std::uint32_t endport_capabilities(NodeType type) {
  using namespace wire::port_capability;
  const std::uint32_t common = kTrap | kSlMapping | kSystemImageGuid | kExtendedSpeeds |
                               kCapabilityMask2 | kCapabilityMaskNotice;
  if (type == NodeType::kSwitch) return common | kPkeySwitchExternalPortTrap;
  if (type == NodeType::kRouter) return common | kClientReregistration;
  return common | kAutomaticMigration | kCommunicationManagement | kClientReregistration;
}

wire::SlToVl default_sl_to_vl() {
  wire::SlToVl lanes;
  for (std::size_t sl = 0; sl < lanes.size(); ++sl) {
    lanes[sl] = static_cast<std::uint8_t>(sl % kDataLanes);
  }
  return lanes;
}

wire::SmpData default_arbitration(bool high_priority) {
  wire::VlArbitrationBlock block{};
  for (std::uint8_t vl = 0; vl < kVlArbitrationCap; ++vl) {
    const bool has_weight = high_priority == (vl == 0);
    block[vl] = {.virtual_lane = vl, .weight = static_cast<std::uint8_t>(has_weight ? 4 : 0)};
  }
  return wire::encode_vl_arbitration(block);
}

// Returns port 0 of a switch.  This port has no link, so it is always up (vol1 18.2.4.1).
DevicePort management_port_of_switch(const Node& node) {
  DevicePort port;
  port.info.port_state = PortState::kActive;
  port.info.port_physical_state = PortPhysicalState::kLinkUp;
  port.info.guid_cap = 1;
  port.guids = {node.port_guids.front()};
  return port;
}

DevicePort external_port(const Node& node, std::uint8_t number) {
  DevicePort port;
  port.info.port_state = PortState::kDown;
  port.info.port_physical_state = PortPhysicalState::kPolling;
  if (!node.is_switch()) {
    port.info.guid_cap = kHcaGuidCap;
    port.guids.resize(kHcaGuidCap);
    port.guids.front() = node.port_guid(number);
  }
  return port;
}

void set_defaults(DevicePort& port, const Node& node, std::uint8_t number) {
  PortInfo& info = port.info;
  const bool is_endport = number == 0 || !node.is_switch();
  if (is_endport) {
    info.gid_prefix = kDefaultGidPrefix;
    info.capability_mask = endport_capabilities(node.type);
    info.capability_mask2 = wire::port_capability2::kLinkWidth2x |
                            wire::port_capability2::kLinkSpeedHdr |
                            wire::port_capability2::kLinkSpeedNdr;
    info.subnet_timeout = kDefaultSubnetTimeout;
    info.resp_time_value = kDefaultRespTime;
  }
  info.local_port_num = number;
  info.link_down_default_state = PortPhysicalState::kPolling;
  info.vl_cap = info.operational_vls = kVlCap0To7;
  info.vl_arbitration_high_cap = info.vl_arbitration_low_cap = kVlArbitrationCap;
  set_supported(info, Link{});
  port.pkeys.resize(kPartitionCap);
  port.pkeys.front() = wire::kDefaultPkey;
  port.sl_to_vl.assign(node.is_switch() ? node.ports + std::size_t{1} : 1, default_sl_to_vl());
  port.vl_arbitration = {default_arbitration(false), default_arbitration(true)};
}

// Returns the enabled speeds of a port; bit N represents the LinkSpeed with the number N.
unsigned enabled_speeds(const PortInfo& info) {
  return info.link_speed_enabled | unsigned{info.link_speed_ext_enabled} << kSpeedsBeforeExtended;
}

}  // namespace

std::uint8_t lanes_of_code(std::uint8_t code) {
  constexpr std::array<std::uint8_t, 6> kLanes{1, 1, 2, 4, 8, 15};
  return kLanes[std::min<std::size_t>(code, kLanes.size() - 1)];
}

Pkey DevicePort::own_pkey(Pkey packet_pkey) const {
  const auto match = std::ranges::find_if(
      pkeys, [&](Pkey entry) { return wire::pkeys_match(entry, packet_pkey); });
  return match == pkeys.end() ? Pkey{} : *match;
}

bool DevicePort::operates_lane(std::uint8_t lane) const {
  return lane < lanes_of_code(info.operational_vls);
}

Device::Device(const Node& node) {
  node_info = {.node_type = wire::NodeType{static_cast<std::uint8_t>(node.type)},
               .num_ports = node.ports,
               .system_image_guid = node.system_guid,
               .node_guid = node.node_guid,
               .port_guid = node.port_guids.front(),
               .partition_cap = kPartitionCap,
               .device_id = node.device_id,
               .revision = kRevision,
               .local_port_num = 1,
               .vendor_id = node.vendor_id};
  const std::string& text = node.description.empty() ? node.name : node.description;
  const auto bytes = std::as_bytes(std::span(text));
  std::ranges::copy(bytes.first(std::min(bytes.size(), description.text.size())),
                    description.text.begin());
  if (node.is_switch()) {
    switch_info = {.linear_fdb_cap = kLinearFdbCap,
                   .multicast_fdb_cap = kMulticastFdbCap,
                   .default_multicast_primary_port = wire::kLftNoPort,
                   .default_multicast_not_primary_port = wire::kLftNoPort,
                   .partition_enforcement_cap = kPartitionCap,
                   .inbound_enforcement_cap = true,
                   .outbound_enforcement_cap = true,
                   .filter_raw_inbound_cap = true,
                   .filter_raw_outbound_cap = true};
  }
  ports.push_back(node.is_switch() ? management_port_of_switch(node) : DevicePort{});
  for (unsigned number = 1; number <= node.ports; ++number) {
    ports.push_back(external_port(node, static_cast<std::uint8_t>(number)));
  }
  for (std::size_t number = node.is_switch() ? 0 : 1; number < ports.size(); ++number) {
    set_defaults(ports[number], node, static_cast<std::uint8_t>(number));
  }
}

wire::NodeInfo Device::node_info_at(std::uint8_t in_port) const {
  wire::NodeInfo info = node_info;
  info.local_port_num = in_port;
  info.port_guid = management_port(in_port).guids.front();
  return info;
}

std::uint8_t Device::egress(Lid destination) const {
  if (destination.value > switch_info.linear_fdb_top || destination.value >= lft_.size()) {
    return wire::kLftNoPort;
  }
  const std::uint8_t port = lft_[destination.value];
  return port <= port_count() ? port : wire::kLftNoPort;
}

void Device::multicast_egress(Lid destination, std::uint8_t ingress,
                              std::vector<std::uint8_t>& ports_out) const {
  const std::size_t entry = destination.value - std::size_t{0xc000};
  const std::size_t positions = mft_positions();
  const auto append = [&](std::uint8_t port) {
    if (port != ingress && port <= port_count()) ports_out.push_back(port);
  };
  if (entry >= kMulticastFdbCap) {
    const bool from_primary = ingress == switch_info.default_multicast_primary_port;
    append(from_primary ? switch_info.default_multicast_not_primary_port
                        : switch_info.default_multicast_primary_port);
    return;
  }
  if (mft_.empty()) return;
  for (std::size_t position = 0; position < positions; ++position) {
    for (unsigned mask = mft_[entry * positions + position]; mask != 0; mask &= mask - 1) {
      const std::size_t bit = static_cast<std::size_t>(std::countr_zero(mask));
      append(static_cast<std::uint8_t>(position * wire::kMftPortsPerMask + bit));
    }
  }
}

wire::LftBlock Device::lft_block(std::size_t block) const {
  wire::LftBlock out;
  out.fill(wire::kLftNoPort);
  const std::size_t first = block * out.size();
  if (first < lft_.size()) {
    std::copy_n(lft_.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
  }
  return out;
}

void Device::set_lft_block(std::size_t block, const wire::LftBlock& ports_of_lids) {
  const std::size_t first = block * ports_of_lids.size();
  const std::size_t end = first + ports_of_lids.size();
  if (lft_.size() < end) lft_.resize(end, wire::kLftNoPort);
  std::ranges::copy(ports_of_lids, lft_.begin() + static_cast<std::ptrdiff_t>(first));
}

wire::MftBlock Device::mft_block(std::size_t block, std::size_t position) const {
  wire::MftBlock out{};
  if (mft_.empty()) return out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = mft_[(block * out.size() + i) * mft_positions() + position];
  }
  return out;
}

void Device::set_mft_block(std::size_t block, std::size_t position, const wire::MftBlock& masks) {
  if (mft_.empty()) mft_.resize(kMulticastFdbCap * mft_positions());
  for (std::size_t i = 0; i < masks.size(); ++i) {
    mft_[(block * masks.size() + i) * mft_positions() + position] = masks[i];
  }
}

void set_supported(PortInfo& info, const Link& link) {
  const auto width = static_cast<std::uint8_t>(link.width);
  constexpr auto k1x = static_cast<std::uint8_t>(LinkWidth::k1x);
  constexpr auto k4x = static_cast<std::uint8_t>(LinkWidth::k4x);
  const bool is_wide = link.width == LinkWidth::k8x || link.width == LinkWidth::k12x;
  info.link_width_supported = static_cast<std::uint8_t>(k1x | width | (is_wide ? k4x : 0));
  info.link_width_enabled = info.link_width_supported;
  info.link_width_active = width;
  const unsigned speeds = (2u << static_cast<unsigned>(speed_in_port_info(link.speed))) - 1;
  info.link_speed_supported = speeds & 7;
  info.link_speed_enabled = info.link_speed_supported;
  info.link_speed_ext_supported = static_cast<std::uint8_t>(speeds >> kSpeedsBeforeExtended);
  info.link_speed_ext_enabled = info.link_speed_ext_supported;
  info.link_speed_active = 1;
  info.link_speed_ext_active = 0;
  info.mtu_cap = info.neighbor_mtu = static_cast<std::uint8_t>(link.mtu);
}

bool negotiate(PortInfo& a, PortInfo& b) {
  const unsigned speeds = enabled_speeds(a) & enabled_speeds(b);
  const unsigned widths = a.link_width_enabled & b.link_width_enabled;
  if (speeds == 0 || widths == 0) return false;
  // The width 2x has the highest bit, although only 1x is narrower than 2x.
  constexpr unsigned k2x = static_cast<unsigned>(LinkWidth::k2x);
  const unsigned wider_than_2x = widths & ~k2x & ~1u;
  const unsigned width =
      wider_than_2x != 0 ? std::bit_floor(wider_than_2x) : std::bit_floor(widths);
  const unsigned speed = std::bit_floor(speeds);
  for (PortInfo* info : {&a, &b}) {
    info->link_width_active = static_cast<std::uint8_t>(width);
    info->link_speed_ext_active = static_cast<std::uint8_t>(speed >> kSpeedsBeforeExtended);
    info->link_speed_active = static_cast<std::uint8_t>(
        info->link_speed_ext_active != 0 ? std::bit_floor(unsigned{info->link_speed_enabled})
                                         : speed);
  }
  return true;
}

LinkWidth active_width(const PortInfo& info) { return LinkWidth{info.link_width_active}; }

LinkSpeed active_speed(const PortInfo& info) {
  const unsigned bits = info.link_speed_ext_active != 0
                            ? unsigned{info.link_speed_ext_active} << kSpeedsBeforeExtended
                            : std::max<unsigned>(info.link_speed_active, 1);
  return static_cast<LinkSpeed>(std::bit_width(bits) - 1);
}

}  // namespace verbena::subnet
