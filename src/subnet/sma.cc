#include "subnet/sma.h"

#include <algorithm>

#include "subnet/set_port_info.h"

namespace verbena::subnet {
namespace {

using wire::SmpAttribute;
using wire::SmpData;
using namespace wire::mad_status;

constexpr std::uint16_t kSuccess = 0;
// The modifier of PortInfo has the port in its low 8 bits.  The other bits are ignored, because a
// manager that supports extended speeds sets the top bit (vol1 14.2.5.6).
constexpr std::uint32_t kPortInfoPortMask = 0xff;

// Returns the port that an attribute modifier names; nothing if the port does not exist.  For an
// HCA, which has no port 0, the number 0 means the port that received the SMP.
std::optional<std::uint8_t> port_of(const Device& device, std::uint8_t in_port,
                                    std::uint32_t number) {
  if (!device.is_switch() && number == 0) return in_port;
  if (number > device.port_count()) return std::nullopt;
  return static_cast<std::uint8_t>(number);
}

std::uint16_t get_guids(const Device& device, const SmaRequest& request, SmpData& data) {
  const DevicePort& port = device.management_port(request.in_port);
  const std::size_t first = request.modifier * wire::kGuidsPerBlock;
  if (first >= port.guids.size()) return kInvalidValue;
  wire::GuidBlock block{};
  for (std::size_t i = 0; i < block.size() && first + i < port.guids.size(); ++i) {
    block[i] = port.guids[first + i];
  }
  data = wire::encode_guids(block);
  return kSuccess;
}

// Sets a block of GUIDs.  The GUID with index 0 is the manufacturer's and does not change (vol1
// 14.2.5.5).
std::uint16_t set_guids(Device& device, const SmaRequest& request, const SmpData& data) {
  DevicePort& port = device.management_port(request.in_port);
  const std::size_t first = request.modifier * wire::kGuidsPerBlock;
  if (first >= port.guids.size()) return kInvalidValue;
  const wire::GuidBlock block = wire::decode_guids(data);
  for (std::size_t i = 0; i < block.size() && first + i < port.guids.size(); ++i) {
    if (first + i != 0) port.guids[first + i] = block[i];
  }
  return kSuccess;
}

// Locates a block of a port's P_Keys.
struct PkeyPlace {
  std::uint8_t port = 0;
  std::size_t first_index = 0;  // the index of the block's first P_Key in the table
};
std::optional<PkeyPlace> pkey_place(const Device& device, const SmaRequest& request) {
  const auto port = device.is_switch() ? port_of(device, request.in_port, request.modifier >> 16)
                                       : request.in_port;
  const std::size_t first_index = (request.modifier & 0xffff) * wire::kPkeysPerBlock;
  if (!port || first_index >= kPartitionCap) return std::nullopt;
  return PkeyPlace{*port, first_index};
}

std::uint16_t get_pkeys(const Device& device, const SmaRequest& request, SmpData& data) {
  const auto place = pkey_place(device, request);
  if (!place) return kInvalidValue;
  wire::PkeyBlock block;
  const auto& pkeys = device.ports[place->port].pkeys;
  std::copy_n(pkeys.begin() + static_cast<std::ptrdiff_t>(place->first_index), block.size(),
              block.begin());
  data = wire::encode_pkeys(block);
  return kSuccess;
}

std::uint16_t set_pkeys(Device& device, const SmaRequest& request, const SmpData& data,
                        SmaEffects& effects) {
  const auto place = pkey_place(device, request);
  if (!place) return kInvalidValue;
  auto& pkeys = device.ports[place->port].pkeys;
  std::ranges::copy(wire::decode_pkeys(data),
                    pkeys.begin() + static_cast<std::ptrdiff_t>(place->first_index));
  effects.changed_port = place->port;
  return kSuccess;
}

// Returns the table for an ingress and an egress port; null if a port does not exist.  An HCA has
// one table for each port, and ignores the modifier (vol1 14.2.5.8).
template <class AnyDevice>
auto sl_to_vl_table(AnyDevice& device, const SmaRequest& request)
    -> decltype(&device.ports.front().sl_to_vl.front()) {
  if (!device.is_switch()) return &device.ports[request.in_port].sl_to_vl.front();
  const std::uint32_t ingress = request.modifier >> 8 & 0xff;
  const std::uint32_t egress = request.modifier & 0xff;
  if (ingress > device.port_count() || egress > device.port_count()) return nullptr;
  return &device.ports[egress].sl_to_vl[ingress];
}

std::uint16_t set_sl_to_vl(Device& device, const SmaRequest& request, const SmpData& data) {
  wire::SlToVl* table = sl_to_vl_table(device, request);
  if (table == nullptr) return kInvalidValue;
  *table = wire::decode_sl_to_vl(data);
  return kSuccess;
}

// Returns a block of the arbitration table; null if the block does not exist.  Block 1 begins the
// low-priority table, and block 3 begins the high-priority table.  Other blocks are not needed
// (vol1 14.2.5.9).
template <class AnyDevice>
auto arbitration_table(AnyDevice& device, const SmaRequest& request)
    -> decltype(device.ports.front().vl_arbitration.data()) {
  const std::uint32_t block = request.modifier >> 16;
  const auto port = device.is_switch() ? port_of(device, request.in_port, request.modifier & 0xffff)
                                       : request.in_port;
  if (!port || (block != 1 && block != 3)) return nullptr;
  return &device.ports[*port].vl_arbitration[block == 1 ? 0 : 1];
}

std::uint16_t set_arbitration(Device& device, const SmaRequest& request, const SmpData& data) {
  SmpData* table = arbitration_table(device, request);
  if (table == nullptr) return kInvalidValue;
  wire::VlArbitrationBlock block = wire::decode_vl_arbitration(data);
  std::fill(block.begin() + kVlArbitrationCap, block.end(), wire::VlWeight{});
  *table = wire::encode_vl_arbitration(block);
  return kSuccess;
}

bool has_lft_block(const Device& device, std::uint32_t modifier) {
  return device.is_switch() && modifier < kLinearFdbCap / wire::kLftPortsPerBlock;
}

struct MftPlace {
  std::size_t block = 0;
  std::size_t position = 0;
};
std::optional<MftPlace> mft_place(const Device& device, std::uint32_t modifier) {
  const MftPlace place{.block = modifier & 0x1ff, .position = modifier >> 28};
  const bool exists = place.block < kMulticastFdbCap / wire::kMftMasksPerBlock &&
                      place.position < device.mft_positions();
  return exists ? std::optional(place) : std::nullopt;
}

std::uint16_t set_switch_info(Device& device, const SmpData& data) {
  const auto requested = wire::from_smp_data<wire::SwitchInfo>(data);
  wire::SwitchInfo& info = device.switch_info;
  if (requested.linear_fdb_top >= info.linear_fdb_cap) return kInvalidValue;
  info.linear_fdb_top = requested.linear_fdb_top;
  info.default_port = requested.default_port;
  info.default_multicast_primary_port = requested.default_multicast_primary_port;
  info.default_multicast_not_primary_port = requested.default_multicast_not_primary_port;
  info.life_time_value = requested.life_time_value;
  if (requested.port_state_change) info.port_state_change = false;  // writing 1 clears the bit
  return kSuccess;
}

std::uint16_t get_switch_attribute(const Device& device, const SmaRequest& request, SmpData& data) {
  switch (SmpAttribute{request.attribute_id}) {
    case SmpAttribute::kSwitchInfo: data = wire::smp_data(device.switch_info); return kSuccess;
    case SmpAttribute::kLinearForwardingTable:
      if (!has_lft_block(device, request.modifier)) return kInvalidValue;
      data = wire::encode_lft(device.lft_block(request.modifier));
      return kSuccess;
    case SmpAttribute::kMulticastForwardingTable: {
      const auto place = mft_place(device, request.modifier);
      if (!place) return kInvalidValue;
      data = wire::encode_mft(device.mft_block(place->block, place->position));
      return kSuccess;
    }
    default: return kMethodAttributeNotSupported;
  }
}

std::uint16_t set_switch_attribute(Device& device, const SmaRequest& request, const SmpData& data) {
  switch (SmpAttribute{request.attribute_id}) {
    case SmpAttribute::kSwitchInfo: return set_switch_info(device, data);
    case SmpAttribute::kLinearForwardingTable:
      if (!has_lft_block(device, request.modifier)) return kInvalidValue;
      device.set_lft_block(request.modifier, wire::decode_lft(data));
      return kSuccess;
    case SmpAttribute::kMulticastForwardingTable: {
      const auto place = mft_place(device, request.modifier);
      if (!place) return kInvalidValue;
      device.set_mft_block(place->block, place->position, wire::decode_mft(data));
      return kSuccess;
    }
    default: return kMethodAttributeNotSupported;
  }
}

std::uint16_t get_port_info(const Device& device, const SmaRequest& request, SmpData& data) {
  const auto number = port_of(device, request.in_port, request.modifier & kPortInfoPortMask);
  if (!number) return kInvalidValue;
  wire::PortInfo info = device.ports[*number].info;
  info.local_port_num = request.in_port;
  data = wire::smp_data(info);
  return kSuccess;
}

}  // namespace

std::uint16_t sma_get(const Device& device, const SmaRequest& request, SmpData& data) {
  data = {};
  switch (SmpAttribute{request.attribute_id}) {
    case SmpAttribute::kNodeDescription: data = device.description.text; return kSuccess;
    case SmpAttribute::kNodeInfo:
      data = wire::smp_data(device.node_info_at(request.in_port));
      return kSuccess;
    case SmpAttribute::kGuidInfo: return get_guids(device, request, data);
    case SmpAttribute::kPortInfo: return get_port_info(device, request, data);
    case SmpAttribute::kPkeyTable: return get_pkeys(device, request, data);
    case SmpAttribute::kSlToVlMappingTable: {
      const wire::SlToVl* table = sl_to_vl_table(device, request);
      if (table == nullptr) return kInvalidValue;
      data = wire::encode_sl_to_vl(*table);
      return kSuccess;
    }
    case SmpAttribute::kVlArbitrationTable: {
      const SmpData* table = arbitration_table(device, request);
      if (table == nullptr) return kInvalidValue;
      data = *table;
      return kSuccess;
    }
    default:
      return device.is_switch() ? get_switch_attribute(device, request, data)
                                : kMethodAttributeNotSupported;
  }
}

std::uint16_t sma_set(Device& device, const SmaRequest& request, const SmpData& data,
                      SmaEffects& effects) {
  switch (SmpAttribute{request.attribute_id}) {
    case SmpAttribute::kGuidInfo:
      effects.changed_port = device.management_port_number(request.in_port);
      return set_guids(device, request, data);
    case SmpAttribute::kPortInfo: {
      const auto number = port_of(device, request.in_port, request.modifier & kPortInfoPortMask);
      if (!number || (!device.is_switch() && *number != request.in_port)) return kInvalidValue;
      return set_port_info(device, *number, wire::from_smp_data<wire::PortInfo>(data), effects)
                 ? kSuccess
                 : kInvalidValue;
    }
    case SmpAttribute::kPkeyTable: return set_pkeys(device, request, data, effects);
    case SmpAttribute::kSlToVlMappingTable: return set_sl_to_vl(device, request, data);
    case SmpAttribute::kVlArbitrationTable: return set_arbitration(device, request, data);
    default:
      return device.is_switch() ? set_switch_attribute(device, request, data)
                                : kMethodAttributeNotSupported;
  }
}

bool m_key_allows(const wire::PortInfo& info, wire::Method method, std::uint64_t m_key) {
  if (info.m_key == 0 || info.m_key == m_key) return true;
  constexpr std::uint8_t kGetNeedsKey = 2;
  return method == wire::Method::kGet && info.m_key_protect_bits < kGetNeedsKey;
}

}  // namespace verbena::subnet
