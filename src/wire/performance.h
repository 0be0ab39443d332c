#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "wire/layout.h"
#include "wire/mad.h"

// Defines the attributes of the performance management class (vol1 16.1).
namespace verbena::wire {

// Attributes of this class, including ClassPortInfo, begin at this byte of the MAD (vol1 16.1.1).
inline constexpr std::size_t kPerformanceDataOffset = 64;
inline constexpr std::size_t kPerformanceDataBytes = kMadBytes - kPerformanceDataOffset;

enum class PerformanceAttribute : std::uint16_t {
  kClassPortInfo = 0x0001,
  kPortSamplesControl = 0x0010,
  kPortSamplesResult = 0x0011,
  kPortCounters = 0x0012,
  kPortRcvErrorDetails = 0x0015,
  kPortXmitDiscardDetails = 0x0016,
  kPortCountersExtended = 0x001d,
};

// Names bits of ClassPortInfo::capability_mask in this class (vol1 16.1.3.1).
namespace performance_capability {
inline constexpr std::uint16_t kAllPortSelect = 1u << 8;
inline constexpr std::uint16_t kExtendedWidth = 1u << 9;
inline constexpr std::uint16_t kXmitWait = 1u << 12;
inline constexpr std::uint16_t kQp1Drops = 1u << 15;
}  // namespace performance_capability
// Names a bit of ClassPortInfo::capability_mask2.
inline constexpr std::uint32_t kAdditionalCountersExtended = 1u << 1;

inline constexpr std::uint8_t kAllPorts = 0xff;

// clang-format off
// Contains the basic counters of a port (vol1 16.1.3.5).  A Set writes only the counters that
// counter_select and counter_select2 select.  Bits 0 to 15 of counter_select select the counters
// from symbol_errors to rcv_packets in the order of the fields, without qp1_dropped.  Bits 0 and 1
// of counter_select2 select xmit_wait and qp1_dropped.
struct PortCounters {
  std::uint8_t port_select{};
  std::uint16_t counter_select{};
  std::uint16_t symbol_errors{};
  std::uint8_t link_error_recoveries{};
  std::uint8_t link_downed{};
  std::uint16_t rcv_errors{};
  std::uint16_t rcv_remote_physical_errors{};
  std::uint16_t rcv_switch_relay_errors{};
  std::uint16_t xmit_discards{};
  std::uint8_t xmit_constraint_errors{};
  std::uint8_t rcv_constraint_errors{};
  std::uint8_t counter_select2{};
  std::uint8_t local_link_integrity_errors{};      // 4 bits
  std::uint8_t excessive_buffer_overrun_errors{};  // 4 bits
  std::uint16_t qp1_dropped{};
  std::uint16_t vl15_dropped{};
  std::uint32_t xmit_data{};  // in words of 4 bytes
  std::uint32_t rcv_data{};   // in words of 4 bytes
  std::uint32_t xmit_packets{};
  std::uint32_t rcv_packets{};
  std::uint32_t xmit_wait{};

  friend bool operator==(const PortCounters&, const PortCounters&) = default;

  static consteval auto layout() {
    return wire::layout<44>(
        field<&PortCounters::port_select>                    ({.byte = 1,            .bits = 8}),
        field<&PortCounters::counter_select>                 ({.byte = 2,            .bits = 16}),
        field<&PortCounters::symbol_errors>                  ({.byte = 4,            .bits = 16}),
        field<&PortCounters::link_error_recoveries>          ({.byte = 6,            .bits = 8}),
        field<&PortCounters::link_downed>                    ({.byte = 7,            .bits = 8}),
        field<&PortCounters::rcv_errors>                     ({.byte = 8,            .bits = 16}),
        field<&PortCounters::rcv_remote_physical_errors>     ({.byte = 10,           .bits = 16}),
        field<&PortCounters::rcv_switch_relay_errors>        ({.byte = 12,           .bits = 16}),
        field<&PortCounters::xmit_discards>                  ({.byte = 14,           .bits = 16}),
        field<&PortCounters::xmit_constraint_errors>         ({.byte = 16,           .bits = 8}),
        field<&PortCounters::rcv_constraint_errors>          ({.byte = 17,           .bits = 8}),
        field<&PortCounters::counter_select2>                ({.byte = 18,           .bits = 8}),
        field<&PortCounters::local_link_integrity_errors>    ({.byte = 19, .bit = 0, .bits = 4}),
        field<&PortCounters::excessive_buffer_overrun_errors>({.byte = 19, .bit = 4, .bits = 4}),
        field<&PortCounters::qp1_dropped>                    ({.byte = 20,           .bits = 16}),
        field<&PortCounters::vl15_dropped>                   ({.byte = 22,           .bits = 16}),
        field<&PortCounters::xmit_data>                      ({.byte = 24,           .bits = 32}),
        field<&PortCounters::rcv_data>                       ({.byte = 28,           .bits = 32}),
        field<&PortCounters::xmit_packets>                   ({.byte = 32,           .bits = 32}),
        field<&PortCounters::rcv_packets>                    ({.byte = 36,           .bits = 32}),
        field<&PortCounters::xmit_wait>                      ({.byte = 40,           .bits = 32}));
  }
};

// Contains the 64-bit counters of a port (vol1 16.1.4.11).  The bits of counter_select select the
// counters from xmit_data to multicast_rcv_packets.  The bits of counter_select2 select the
// counters from symbol_errors to qp1_dropped.
struct PortCountersExtended {
  std::uint8_t port_select{};
  std::uint16_t counter_select{};
  std::uint32_t counter_select2{};
  std::uint64_t xmit_data{};  // in words of 4 bytes
  std::uint64_t rcv_data{};   // in words of 4 bytes
  std::uint64_t xmit_packets{};
  std::uint64_t rcv_packets{};
  std::uint64_t unicast_xmit_packets{};
  std::uint64_t unicast_rcv_packets{};
  std::uint64_t multicast_xmit_packets{};
  std::uint64_t multicast_rcv_packets{};
  std::uint64_t symbol_errors{};
  std::uint64_t link_error_recoveries{};
  std::uint64_t link_downed{};
  std::uint64_t rcv_errors{};
  std::uint64_t rcv_remote_physical_errors{};
  std::uint64_t rcv_switch_relay_errors{};
  std::uint64_t xmit_discards{};
  std::uint64_t xmit_constraint_errors{};
  std::uint64_t rcv_constraint_errors{};
  std::uint64_t local_link_integrity_errors{};
  std::uint64_t excessive_buffer_overrun_errors{};
  std::uint64_t vl15_dropped{};
  std::uint64_t xmit_wait{};
  std::uint64_t qp1_dropped{};

  friend bool operator==(const PortCountersExtended&, const PortCountersExtended&) = default;

  static consteval auto layout() {
    return wire::layout<184>(
        field<&PortCountersExtended::port_select>                    ({.byte = 1,   .bits = 8}),
        field<&PortCountersExtended::counter_select>                 ({.byte = 2,   .bits = 16}),
        field<&PortCountersExtended::counter_select2>                ({.byte = 4,   .bits = 32}),
        field<&PortCountersExtended::xmit_data>                      ({.byte = 8,   .bits = 64}),
        field<&PortCountersExtended::rcv_data>                       ({.byte = 16,  .bits = 64}),
        field<&PortCountersExtended::xmit_packets>                   ({.byte = 24,  .bits = 64}),
        field<&PortCountersExtended::rcv_packets>                    ({.byte = 32,  .bits = 64}),
        field<&PortCountersExtended::unicast_xmit_packets>           ({.byte = 40,  .bits = 64}),
        field<&PortCountersExtended::unicast_rcv_packets>            ({.byte = 48,  .bits = 64}),
        field<&PortCountersExtended::multicast_xmit_packets>         ({.byte = 56,  .bits = 64}),
        field<&PortCountersExtended::multicast_rcv_packets>          ({.byte = 64,  .bits = 64}),
        field<&PortCountersExtended::symbol_errors>                  ({.byte = 72,  .bits = 64}),
        field<&PortCountersExtended::link_error_recoveries>          ({.byte = 80,  .bits = 64}),
        field<&PortCountersExtended::link_downed>                    ({.byte = 88,  .bits = 64}),
        field<&PortCountersExtended::rcv_errors>                     ({.byte = 96,  .bits = 64}),
        field<&PortCountersExtended::rcv_remote_physical_errors>     ({.byte = 104, .bits = 64}),
        field<&PortCountersExtended::rcv_switch_relay_errors>        ({.byte = 112, .bits = 64}),
        field<&PortCountersExtended::xmit_discards>                  ({.byte = 120, .bits = 64}),
        field<&PortCountersExtended::xmit_constraint_errors>         ({.byte = 128, .bits = 64}),
        field<&PortCountersExtended::rcv_constraint_errors>          ({.byte = 136, .bits = 64}),
        field<&PortCountersExtended::local_link_integrity_errors>    ({.byte = 144, .bits = 64}),
        field<&PortCountersExtended::excessive_buffer_overrun_errors>({.byte = 152, .bits = 64}),
        field<&PortCountersExtended::vl15_dropped>                   ({.byte = 160, .bits = 64}),
        field<&PortCountersExtended::xmit_wait>                      ({.byte = 168, .bits = 64}),
        field<&PortCountersExtended::qp1_dropped>                    ({.byte = 176, .bits = 64}));
  }
};

// Contains the counts of rcv_errors and rcv_switch_relay_errors for each reason (vol1 16.1.4.3).
struct PortRcvErrorDetails {
  std::uint8_t port_select{};
  std::uint16_t counter_select{};
  std::uint16_t local_physical_errors{};
  std::uint16_t malformed_packet_errors{};
  std::uint16_t buffer_overrun_errors{};
  std::uint16_t dlid_mapping_errors{};
  std::uint16_t vl_mapping_errors{};
  std::uint16_t looping_errors{};

  friend bool operator==(const PortRcvErrorDetails&, const PortRcvErrorDetails&) = default;

  static consteval auto layout() {
    return wire::layout<16>(
        field<&PortRcvErrorDetails::port_select>            ({.byte = 1,  .bits = 8}),
        field<&PortRcvErrorDetails::counter_select>         ({.byte = 2,  .bits = 16}),
        field<&PortRcvErrorDetails::local_physical_errors>  ({.byte = 4,  .bits = 16}),
        field<&PortRcvErrorDetails::malformed_packet_errors>({.byte = 6,  .bits = 16}),
        field<&PortRcvErrorDetails::buffer_overrun_errors>  ({.byte = 8,  .bits = 16}),
        field<&PortRcvErrorDetails::dlid_mapping_errors>    ({.byte = 10, .bits = 16}),
        field<&PortRcvErrorDetails::vl_mapping_errors>      ({.byte = 12, .bits = 16}),
        field<&PortRcvErrorDetails::looping_errors>         ({.byte = 14, .bits = 16}));
  }
};

// Contains the counts of xmit_discards for each reason (vol1 16.1.4.4).
struct PortXmitDiscardDetails {
  std::uint8_t port_select{};
  std::uint16_t counter_select{};
  std::uint16_t inactive_discards{};
  std::uint16_t neighbor_mtu_discards{};
  std::uint16_t switch_lifetime_discards{};
  std::uint16_t switch_hoq_lifetime_discards{};

  friend bool operator==(const PortXmitDiscardDetails&, const PortXmitDiscardDetails&) = default;

  static consteval auto layout() {
    return wire::layout<12>(
        field<&PortXmitDiscardDetails::port_select>                 ({.byte = 1,  .bits = 8}),
        field<&PortXmitDiscardDetails::counter_select>              ({.byte = 2,  .bits = 16}),
        field<&PortXmitDiscardDetails::inactive_discards>           ({.byte = 4,  .bits = 16}),
        field<&PortXmitDiscardDetails::neighbor_mtu_discards>       ({.byte = 6,  .bits = 16}),
        field<&PortXmitDiscardDetails::switch_lifetime_discards>    ({.byte = 8,  .bits = 16}),
        field<&PortXmitDiscardDetails::switch_hoq_lifetime_discards>({.byte = 10, .bits = 16}));
  }
};
// clang-format on

}  // namespace verbena::wire
