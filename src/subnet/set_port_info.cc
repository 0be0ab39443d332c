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

// Returns the enabled bits after a Set: 0 keeps them, `all` enables all supported ones.  Returns
// nothing if the wanted bits are not supported.
std::optional<std::uint8_t> enabled(std::uint8_t now, std::uint8_t wanted, std::uint8_t supported,
                                    std::uint8_t all) {
  if (wanted == 0) return now;
  if (wanted == all) return supported;
  if ((wanted & ~supported) != 0) return std::nullopt;
  return wanted;
}

struct LinkSettings {
  std::uint8_t widths = 0;
  std::uint8_t speeds = 0;
  std::uint8_t extended_speeds = 0;
};

std::optional<LinkSettings> link_settings(const PortInfo& now, const PortInfo& wanted) {
  const auto widths = enabled(now.link_width_enabled, wanted.link_width_enabled,
                              now.link_width_supported, kAllWidths);
  const auto speeds = enabled(now.link_speed_enabled, wanted.link_speed_enabled,
                              now.link_speed_supported, kAllSpeeds);
  auto extended = std::optional<std::uint8_t>(0);
  if (wanted.link_speed_ext_enabled != kNoExtendedSpeeds) {
    extended = enabled(now.link_speed_ext_enabled, wanted.link_speed_ext_enabled,
                       now.link_speed_ext_supported, kAllExtendedSpeeds);
  }
  if (!widths || !speeds || !extended) return std::nullopt;
  return LinkSettings{*widths, *speeds, *extended};
}

// A manager may set any port to Down, a port in Init to Armed, and a port in Armed to Active (vol1
// 7.2.7).
bool state_change_is_allowed(PortState now, PortState wanted) {
  switch (wanted) {
    case PortState::kNop:
    case PortState::kDown: return true;
    case PortState::kInit: return false;
    case PortState::kArmed: return now == PortState::kInit || now == PortState::kArmed;
    case PortState::kActive: return now == PortState::kArmed || now == PortState::kActive;
  }
  return false;
}

bool physical_change_is_allowed(const PortInfo& wanted) {
  if (wanted.port_physical_state > PortPhysicalState::kDisabled) return false;
  return wanted.link_down_default_state <= PortPhysicalState::kPolling;
}

bool endport_fields_are_valid(const PortInfo& wanted) {
  if (!is_unicast(wanted.lid) || !is_unicast(wanted.master_sm_lid)) return false;
  const unsigned path_bits = (1u << wanted.lmc) - 1;
  return (wanted.lid.value & path_bits) == 0 &&
         wanted.lid.value + path_bits < wire::kFirstMulticastLid.value;
}

bool link_fields_are_valid(const PortInfo& now, const PortInfo& wanted) {
  return wanted.neighbor_mtu >= kLowestMtu && wanted.neighbor_mtu <= now.mtu_cap &&
         wanted.operational_vls <= now.vl_cap;
}

void set_endport_fields(PortInfo& info, const PortInfo& wanted) {
  info.m_key = wanted.m_key;
  info.gid_prefix = wanted.gid_prefix;
  info.lid = wanted.lid;
  info.lmc = wanted.lmc;
  info.master_sm_lid = wanted.master_sm_lid;
  info.master_sm_sl = wanted.master_sm_sl;
  info.m_key_protect_bits = wanted.m_key_protect_bits;
  info.m_key_lease_period = wanted.m_key_lease_period;
  info.subnet_timeout = wanted.subnet_timeout;
  info.multicast_pkey_trap_suppression = wanted.multicast_pkey_trap_suppression;
  info.init_type = wanted.init_type;
  // A Set can only clear these counters.
  if (wanted.m_key_violations == 0) info.m_key_violations = 0;
  if (wanted.p_key_violations == 0) info.p_key_violations = 0;
  if (wanted.q_key_violations == 0) info.q_key_violations = 0;
}

void set_link_fields(PortInfo& info, const PortInfo& wanted, const LinkSettings& settings) {
  info.link_width_enabled = settings.widths;
  info.link_speed_enabled = settings.speeds;
  info.link_speed_ext_enabled = settings.extended_speeds;
  info.neighbor_mtu = wanted.neighbor_mtu;
  info.vl_high_limit = wanted.vl_high_limit;
  info.vl_stall_count = wanted.vl_stall_count;
  info.hoq_life = wanted.hoq_life;
  if (wanted.operational_vls != 0) info.operational_vls = wanted.operational_vls;
  if (wanted.link_down_default_state != PortPhysicalState::kNop) {
    info.link_down_default_state = wanted.link_down_default_state;
  }
  info.local_phy_errors = wanted.local_phy_errors;
  info.overrun_errors = wanted.overrun_errors;
}

void set_enforcement(PortInfo& info, const PortInfo& wanted) {
  info.partition_enforcement_inbound = wanted.partition_enforcement_inbound;
  info.partition_enforcement_outbound = wanted.partition_enforcement_outbound;
  info.filter_raw_inbound = wanted.filter_raw_inbound;
  info.filter_raw_outbound = wanted.filter_raw_outbound;
}

// Changes the state of a port.  Leaves a change of its link to the caller, in `effects`.
void change_state(PortInfo& info, const PortInfo& wanted, std::uint8_t number,
                  SmaEffects& effects) {
  PortPhysicalState physical = wanted.port_physical_state;
  if (wanted.port_state == PortState::kDown && physical == PortPhysicalState::kNop) {
    physical = info.link_down_default_state;
  }
  if (physical != PortPhysicalState::kNop) {
    effects.link_change = {.port = number, .to = physical};
  } else if (wanted.port_state != PortState::kNop) {
    info.port_state = wanted.port_state;
  }
}

}  // namespace

bool set_port_info(Device& device, std::uint8_t number, const PortInfo& wanted,
                   SmaEffects& effects) {
  PortInfo& info = device.ports[number].info;
  const bool is_endport = !device.is_switch() || number == 0;
  const bool has_link = number != 0;
  const auto settings = link_settings(info, wanted);
  if (is_endport && !endport_fields_are_valid(wanted)) return false;
  if (has_link &&
      (!settings || !link_fields_are_valid(info, wanted) || !physical_change_is_allowed(wanted) ||
       !state_change_is_allowed(info.port_state, wanted.port_state))) {
    return false;
  }
  if (is_endport) {
    set_endport_fields(info, wanted);
    effects.client_reregister = wanted.client_reregister && !device.is_switch();
  }
  if (has_link) {
    set_link_fields(info, wanted, *settings);
    change_state(info, wanted, number, effects);
    if (device.is_switch()) set_enforcement(info, wanted);
  }
  effects.changed_port = number;
  return true;
}

}  // namespace verbena::subnet
