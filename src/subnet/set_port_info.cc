#include "subnet/set_port_info.h"

#include <optional>

#include "wire/infiniband.h"

namespace verbena::subnet {
namespace {

using wire::PortInfo;
using wire::PortPhysicalState;
using wire::PortState;

constexpr std::uint8_t kAllWidths = 0xff;
constexpr std::uint8_t kAllSpeeds = 0x0f;
constexpr std::uint8_t kAllExtendedSpeeds = 0x1f;
constexpr std::uint8_t kNoExtendedSpeeds = 0x1e;
constexpr std::uint8_t kLowestMtu = 1;

bool is_unicast(Lid lid) { return lid.value != 0 && lid.value < wire::kFirstMulticastLid.value; }

// Returns the enabled bits after a Set.  A request of 0 changes nothing, and a request of `all`
// enables all supported bits.  Returns nothing if the requested bits are not supported.
std::optional<std::uint8_t> enabled_after_set(std::uint8_t current, std::uint8_t requested,
                                              std::uint8_t supported, std::uint8_t all) {
  if (requested == 0) return current;
  if (requested == all) return supported;
  if ((requested & ~supported) != 0) return std::nullopt;
  return requested;
}

struct LinkSettings {
  std::uint8_t widths = 0;
  std::uint8_t speeds = 0;
  std::uint8_t extended_speeds = 0;
};

std::optional<LinkSettings> link_settings(const PortInfo& current, const PortInfo& requested) {
  const auto widths = enabled_after_set(current.link_width_enabled, requested.link_width_enabled,
                                        current.link_width_supported, kAllWidths);
  const auto speeds = enabled_after_set(current.link_speed_enabled, requested.link_speed_enabled,
                                        current.link_speed_supported, kAllSpeeds);
  auto extended_speeds = std::optional<std::uint8_t>(0);
  if (requested.link_speed_ext_enabled != kNoExtendedSpeeds) {
    extended_speeds =
        enabled_after_set(current.link_speed_ext_enabled, requested.link_speed_ext_enabled,
                          current.link_speed_ext_supported, kAllExtendedSpeeds);
  }
  if (!widths || !speeds || !extended_speeds) return std::nullopt;
  return LinkSettings{*widths, *speeds, *extended_speeds};
}

// A manager may set any port to Down, a port in Init to Armed, and a port in Armed to Active (vol1
// 7.2.7).  It may also set a port to Armed or Active if the port is in this state already.
bool state_change_is_allowed(PortState current, PortState requested) {
  switch (requested) {
    case PortState::kNop:
    case PortState::kDown: return true;
    case PortState::kInit: return false;
    case PortState::kArmed: return current == PortState::kInit || current == PortState::kArmed;
    case PortState::kActive: return current == PortState::kArmed || current == PortState::kActive;
  }
  return false;
}

bool physical_change_is_allowed(const PortInfo& requested) {
  if (requested.port_physical_state > PortPhysicalState::kDisabled) return false;
  return requested.link_down_default_state <= PortPhysicalState::kPolling;
}

bool endport_fields_are_valid(const PortInfo& requested) {
  if (!is_unicast(requested.lid) || !is_unicast(requested.master_sm_lid)) return false;
  const unsigned path_bits = (1u << requested.lmc) - 1;
  return (requested.lid.value & path_bits) == 0 &&
         requested.lid.value + path_bits < wire::kFirstMulticastLid.value;
}

bool link_fields_are_valid(const PortInfo& current, const PortInfo& requested) {
  return requested.neighbor_mtu >= kLowestMtu && requested.neighbor_mtu <= current.mtu_cap &&
         requested.operational_vls <= current.vl_cap;
}

void set_endport_fields(PortInfo& info, const PortInfo& requested) {
  info.m_key = requested.m_key;
  info.gid_prefix = requested.gid_prefix;
  info.lid = requested.lid;
  info.lmc = requested.lmc;
  info.master_sm_lid = requested.master_sm_lid;
  info.master_sm_sl = requested.master_sm_sl;
  info.m_key_protect_bits = requested.m_key_protect_bits;
  info.m_key_lease_period = requested.m_key_lease_period;
  info.subnet_timeout = requested.subnet_timeout;
  info.multicast_pkey_trap_suppression = requested.multicast_pkey_trap_suppression;
  info.init_type = requested.init_type;
  // A Set can only clear these counters.
  if (requested.m_key_violations == 0) info.m_key_violations = 0;
  if (requested.p_key_violations == 0) info.p_key_violations = 0;
  if (requested.q_key_violations == 0) info.q_key_violations = 0;
}

void set_link_fields(PortInfo& info, const PortInfo& requested, const LinkSettings& settings) {
  info.link_width_enabled = settings.widths;
  info.link_speed_enabled = settings.speeds;
  info.link_speed_ext_enabled = settings.extended_speeds;
  info.neighbor_mtu = requested.neighbor_mtu;
  info.vl_high_limit = requested.vl_high_limit;
  info.vl_stall_count = requested.vl_stall_count;
  info.hoq_life = requested.hoq_life;
  if (requested.operational_vls != 0) info.operational_vls = requested.operational_vls;
  if (requested.link_down_default_state != PortPhysicalState::kNop) {
    info.link_down_default_state = requested.link_down_default_state;
  }
  info.local_phy_errors = requested.local_phy_errors;
  info.overrun_errors = requested.overrun_errors;
}

void set_enforcement(PortInfo& info, const PortInfo& requested) {
  info.partition_enforcement_inbound = requested.partition_enforcement_inbound;
  info.partition_enforcement_outbound = requested.partition_enforcement_outbound;
  info.filter_raw_inbound = requested.filter_raw_inbound;
  info.filter_raw_outbound = requested.filter_raw_outbound;
}

// Changes the state of a port.  If the state of its link must change, sets effects.link_change, so
// that the caller changes the link.
void change_state(PortInfo& info, const PortInfo& requested, std::uint8_t number,
                  SmaEffects& effects) {
  PortPhysicalState physical_state = requested.port_physical_state;
  if (requested.port_state == PortState::kDown && physical_state == PortPhysicalState::kNop) {
    physical_state = info.link_down_default_state;
  }
  if (physical_state != PortPhysicalState::kNop) {
    effects.link_change = {.port = number, .physical_state = physical_state};
  } else if (requested.port_state != PortState::kNop) {
    info.port_state = requested.port_state;
  }
}

}  // namespace

bool set_port_info(Device& device, std::uint8_t number, const PortInfo& requested,
                   SmaEffects& effects) {
  PortInfo& info = device.ports[number].info;
  const bool is_endport = !device.is_switch() || number == 0;
  const bool has_link = number != 0;
  const auto settings = link_settings(info, requested);
  if (is_endport && !endport_fields_are_valid(requested)) return false;
  if (has_link && (!settings || !link_fields_are_valid(info, requested) ||
                   !physical_change_is_allowed(requested) ||
                   !state_change_is_allowed(info.port_state, requested.port_state))) {
    return false;
  }
  if (is_endport) {
    set_endport_fields(info, requested);
    effects.client_reregister = requested.client_reregister && !device.is_switch();
  }
  if (has_link) {
    set_link_fields(info, requested, *settings);
    change_state(info, requested, number, effects);
    if (device.is_switch()) set_enforcement(info, requested);
  }
  effects.changed_port = number;
  return true;
}

}  // namespace verbena::subnet
