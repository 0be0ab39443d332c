#pragma once

#include <cstddef>
#include <cstdint>

#include "base/strong.h"
#include "wire/layout.h"

// Defines the attribute PortInfo of the subnet management class (vol1 14.2.5.6).
namespace verbena::wire {

// kNop of the next two enumerations means "no change" in a Set.
enum class PortState : std::uint8_t { kNop = 0, kDown = 1, kInit = 2, kArmed = 3, kActive = 4 };
enum class PortPhysicalState : std::uint8_t {
  kNop = 0,
  kSleep = 1,
  kPolling = 2,
  kDisabled = 3,
  kTraining = 4,
  kLinkUp = 5,
  kErrorRecovery = 6,
};

// Names bits of PortInfo::capability_mask.
namespace port_capability {
inline constexpr std::uint32_t kIsSm = 1u << 1;
inline constexpr std::uint32_t kTrap = 1u << 3;
inline constexpr std::uint32_t kAutomaticMigration = 1u << 5;
inline constexpr std::uint32_t kSlMapping = 1u << 6;
inline constexpr std::uint32_t kSystemImageGuid = 1u << 11;
inline constexpr std::uint32_t kPkeySwitchExternalPortTrap = 1u << 12;
inline constexpr std::uint32_t kExtendedSpeeds = 1u << 14;
inline constexpr std::uint32_t kCapabilityMask2 = 1u << 15;
inline constexpr std::uint32_t kCommunicationManagement = 1u << 16;
inline constexpr std::uint32_t kCapabilityMaskNotice = 1u << 22;
inline constexpr std::uint32_t kClientReregistration = 1u << 25;
}  // namespace port_capability

// Names bits of PortInfo::capability_mask2.
namespace port_capability2 {
inline constexpr std::uint16_t kLinkWidth2x = 1u << 4;
inline constexpr std::uint16_t kLinkSpeedHdr = 1u << 5;
inline constexpr std::uint16_t kLinkSpeedNdr = 1u << 10;
}  // namespace port_capability2

// clang-format off
struct PortInfo {
  std::uint64_t m_key{};
  std::uint64_t gid_prefix{};
  Lid lid{};
  Lid master_sm_lid{};
  std::uint32_t capability_mask{};
  std::uint16_t diag_code{};
  std::uint16_t m_key_lease_period{};  // seconds
  std::uint8_t local_port_num{};
  std::uint8_t link_width_enabled{};
  std::uint8_t link_width_supported{};
  std::uint8_t link_width_active{};
  std::uint8_t link_speed_supported{};  // 4 bits
  PortState port_state{};
  PortPhysicalState port_physical_state{};
  PortPhysicalState link_down_default_state{};
  std::uint8_t m_key_protect_bits{};  // 2 bits
  std::uint8_t lmc{};                 // 3 bits
  std::uint8_t link_speed_active{};   // 4 bits
  std::uint8_t link_speed_enabled{};  // 4 bits
  std::uint8_t neighbor_mtu{};        // 4 bits, an MTU code
  std::uint8_t master_sm_sl{};        // 4 bits
  std::uint8_t vl_cap{};              // 4 bits: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14
  std::uint8_t init_type{};           // 4 bits
  std::uint8_t vl_high_limit{};
  std::uint8_t vl_arbitration_high_cap{};
  std::uint8_t vl_arbitration_low_cap{};
  std::uint8_t init_type_reply{};  // 4 bits
  std::uint8_t mtu_cap{};          // 4 bits, an MTU code
  std::uint8_t vl_stall_count{};   // 3 bits
  std::uint8_t hoq_life{};         // 5 bits, a timeout code
  std::uint8_t operational_vls{};  // 4 bits, coded like vl_cap
  bool partition_enforcement_inbound{};
  bool partition_enforcement_outbound{};
  bool filter_raw_inbound{};
  bool filter_raw_outbound{};
  std::uint16_t m_key_violations{};
  std::uint16_t p_key_violations{};
  std::uint16_t q_key_violations{};
  std::uint8_t guid_cap{};
  bool client_reregister{};
  std::uint8_t multicast_pkey_trap_suppression{};  // 2 bits
  std::uint8_t subnet_timeout{};                   // 5 bits, a timeout code
  std::uint8_t resp_time_value{};                  // 5 bits, a timeout code
  std::uint8_t local_phy_errors{};                 // 4 bits
  std::uint8_t overrun_errors{};                   // 4 bits
  std::uint16_t max_credit_hint{};
  std::uint32_t link_round_trip_latency{};  // 24 bits
  std::uint16_t capability_mask2{};
  std::uint8_t link_speed_ext_active{};     // 4 bits
  std::uint8_t link_speed_ext_supported{};  // 4 bits
  std::uint8_t link_speed_ext_enabled{};    // 5 bits

  friend bool operator==(const PortInfo&, const PortInfo&) = default;

  static consteval auto layout() {
    return wire::layout<64>(
        field<&PortInfo::m_key>                          ({.byte = 0,            .bits = 64}),
        field<&PortInfo::gid_prefix>                     ({.byte = 8,            .bits = 64}),
        field<&PortInfo::lid>                            ({.byte = 16,           .bits = 16}),
        field<&PortInfo::master_sm_lid>                  ({.byte = 18,           .bits = 16}),
        field<&PortInfo::capability_mask>                ({.byte = 20,           .bits = 32}),
        field<&PortInfo::diag_code>                      ({.byte = 24,           .bits = 16}),
        field<&PortInfo::m_key_lease_period>             ({.byte = 26,           .bits = 16}),
        field<&PortInfo::local_port_num>                 ({.byte = 28,           .bits = 8}),
        field<&PortInfo::link_width_enabled>             ({.byte = 29,           .bits = 8}),
        field<&PortInfo::link_width_supported>           ({.byte = 30,           .bits = 8}),
        field<&PortInfo::link_width_active>              ({.byte = 31,           .bits = 8}),
        field<&PortInfo::link_speed_supported>           ({.byte = 32, .bit = 0, .bits = 4}),
        field<&PortInfo::port_state>                     ({.byte = 32, .bit = 4, .bits = 4}),
        field<&PortInfo::port_physical_state>            ({.byte = 33, .bit = 0, .bits = 4}),
        field<&PortInfo::link_down_default_state>        ({.byte = 33, .bit = 4, .bits = 4}),
        field<&PortInfo::m_key_protect_bits>             ({.byte = 34, .bit = 0, .bits = 2}),
        field<&PortInfo::lmc>                            ({.byte = 34, .bit = 5, .bits = 3}),
        field<&PortInfo::link_speed_active>              ({.byte = 35, .bit = 0, .bits = 4}),
        field<&PortInfo::link_speed_enabled>             ({.byte = 35, .bit = 4, .bits = 4}),
        field<&PortInfo::neighbor_mtu>                   ({.byte = 36, .bit = 0, .bits = 4}),
        field<&PortInfo::master_sm_sl>                   ({.byte = 36, .bit = 4, .bits = 4}),
        field<&PortInfo::vl_cap>                         ({.byte = 37, .bit = 0, .bits = 4}),
        field<&PortInfo::init_type>                      ({.byte = 37, .bit = 4, .bits = 4}),
        field<&PortInfo::vl_high_limit>                  ({.byte = 38,           .bits = 8}),
        field<&PortInfo::vl_arbitration_high_cap>        ({.byte = 39,           .bits = 8}),
        field<&PortInfo::vl_arbitration_low_cap>         ({.byte = 40,           .bits = 8}),
        field<&PortInfo::init_type_reply>                ({.byte = 41, .bit = 0, .bits = 4}),
        field<&PortInfo::mtu_cap>                        ({.byte = 41, .bit = 4, .bits = 4}),
        field<&PortInfo::vl_stall_count>                 ({.byte = 42, .bit = 0, .bits = 3}),
        field<&PortInfo::hoq_life>                       ({.byte = 42, .bit = 3, .bits = 5}),
        field<&PortInfo::operational_vls>                ({.byte = 43, .bit = 0, .bits = 4}),
        field<&PortInfo::partition_enforcement_inbound>  ({.byte = 43, .bit = 4, .bits = 1}),
        field<&PortInfo::partition_enforcement_outbound> ({.byte = 43, .bit = 5, .bits = 1}),
        field<&PortInfo::filter_raw_inbound>             ({.byte = 43, .bit = 6, .bits = 1}),
        field<&PortInfo::filter_raw_outbound>            ({.byte = 43, .bit = 7, .bits = 1}),
        field<&PortInfo::m_key_violations>               ({.byte = 44,           .bits = 16}),
        field<&PortInfo::p_key_violations>               ({.byte = 46,           .bits = 16}),
        field<&PortInfo::q_key_violations>               ({.byte = 48,           .bits = 16}),
        field<&PortInfo::guid_cap>                       ({.byte = 50,           .bits = 8}),
        field<&PortInfo::client_reregister>              ({.byte = 51, .bit = 0, .bits = 1}),
        field<&PortInfo::multicast_pkey_trap_suppression>({.byte = 51, .bit = 1, .bits = 2}),
        field<&PortInfo::subnet_timeout>                 ({.byte = 51, .bit = 3, .bits = 5}),
        field<&PortInfo::resp_time_value>                ({.byte = 52, .bit = 3, .bits = 5}),
        field<&PortInfo::local_phy_errors>               ({.byte = 53, .bit = 0, .bits = 4}),
        field<&PortInfo::overrun_errors>                 ({.byte = 53, .bit = 4, .bits = 4}),
        field<&PortInfo::max_credit_hint>                ({.byte = 54,           .bits = 16}),
        field<&PortInfo::link_round_trip_latency>        ({.byte = 57,           .bits = 24}),
        field<&PortInfo::capability_mask2>               ({.byte = 60,           .bits = 16}),
        field<&PortInfo::link_speed_ext_active>          ({.byte = 62, .bit = 0, .bits = 4}),
        field<&PortInfo::link_speed_ext_supported>       ({.byte = 62, .bit = 4, .bits = 4}),
        field<&PortInfo::link_speed_ext_enabled>         ({.byte = 63, .bit = 3, .bits = 5}));
  }
};
// clang-format on

}  // namespace verbena::wire
