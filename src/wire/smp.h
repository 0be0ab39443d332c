#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/strong.h"
#include "wire/layout.h"
#include "wire/mad.h"

// Defines subnet management packets and the small attributes of the subnet management class (vol1
// 14.2).  PortInfo is in wire/port_info.h, Notice in wire/notice.h.
namespace verbena::wire {

inline constexpr std::size_t kSmpDataBytes = 64;
inline constexpr std::size_t kSmpPathBytes = 64;
inline constexpr unsigned kSmpHopsMax = kSmpPathBytes - 1;  // byte 0 of a path is not used

// Names the attributes of subnet management (vol1 14.2.5).
enum class SmpAttribute : std::uint16_t {
  kNotice = 0x0002,
  kNodeDescription = 0x0010,
  kNodeInfo = 0x0011,
  kSwitchInfo = 0x0012,
  kGuidInfo = 0x0014,
  kPortInfo = 0x0015,
  kPkeyTable = 0x0016,
  kSlToVlMappingTable = 0x0017,
  kVlArbitrationTable = 0x0018,
  kLinearForwardingTable = 0x0019,
  kRandomForwardingTable = 0x001a,
  kMulticastForwardingTable = 0x001b,
  kSmInfo = 0x0020,
  kVendorDiag = 0x0030,
  kLedInfo = 0x0031,
};

// The top bit of the status of a directed route SMP is its direction (vol1 14.2.1.2).  The bit is
// set on the way back.
inline constexpr std::uint16_t kSmpReturning = 0x8000;

using SmpData = std::array<std::byte, kSmpDataBytes>;
using SmpPath = std::array<std::byte, kSmpPathBytes>;

// clang-format off
// Describes an SMP (vol1 14.2.1.1 and 14.2.1.2).  In LID routed SMPs, dr_source, dr_destination and
// the two paths are zero.
struct Smp {
  MadHeader header{};
  std::uint64_t m_key{};
  Lid dr_source{};       // DrSLID
  Lid dr_destination{};  // DrDLID
  SmpData data{};
  SmpPath initial_path{};
  SmpPath return_path{};

  bool is_directed() const { return header.mgmt_class == MgmtClass::kSubnetManagementDirected; }
  bool is_returning() const { return (header.status & kSmpReturning) != 0; }
  std::uint8_t hop_pointer() const { return static_cast<std::uint8_t>(header.class_specific >> 8); }
  std::uint8_t hop_count() const { return static_cast<std::uint8_t>(header.class_specific); }
  void set_hop_pointer(std::uint8_t pointer) {
    header.class_specific = static_cast<std::uint16_t>(pointer << 8 | hop_count());
  }
  void set_hop_count(std::uint8_t count) {
    header.class_specific = static_cast<std::uint16_t>(hop_pointer() << 8 | count);
  }

  friend bool operator==(const Smp&, const Smp&) = default;

  static consteval auto layout() {
    return wire::layout<kMadBytes>(
        field<&Smp::header>        ({.byte = 0,   .bits = 192}),
        field<&Smp::m_key>         ({.byte = 24,  .bits = 64}),
        field<&Smp::dr_source>     ({.byte = 32,  .bits = 16}),
        field<&Smp::dr_destination>({.byte = 34,  .bits = 16}),
        field<&Smp::data>          ({.byte = 64,  .bits = 512}),
        field<&Smp::initial_path>  ({.byte = 128, .bits = 512}),
        field<&Smp::return_path>   ({.byte = 192, .bits = 512}));
  }
};

// Contains the description of a node (vol1 14.2.5.2): UTF-8 text, padded with zeros.
struct NodeDescription {
  std::array<std::byte, 64> text{};

  friend bool operator==(const NodeDescription&, const NodeDescription&) = default;

  static consteval auto layout() {
    return wire::layout<64>(field<&NodeDescription::text>({.byte = 0, .bits = 512}));
  }
};

// Names the types of nodes (vol1 14.2.5.3).
enum class NodeType : std::uint8_t { kChannelAdapter = 1, kSwitch = 2, kRouter = 3 };

struct NodeInfo {
  std::uint8_t base_version{kMadBaseVersion};
  std::uint8_t class_version{1};
  NodeType node_type{};
  std::uint8_t num_ports{};
  Guid system_image_guid{};
  Guid node_guid{};
  Guid port_guid{};
  std::uint16_t partition_cap{};
  std::uint16_t device_id{};
  std::uint32_t revision{};
  std::uint8_t local_port_num{};
  std::uint32_t vendor_id{};  // 24 bits

  friend bool operator==(const NodeInfo&, const NodeInfo&) = default;

  static consteval auto layout() {
    return wire::layout<40>(
        field<&NodeInfo::base_version>     ({.byte = 0,  .bits = 8}),
        field<&NodeInfo::class_version>    ({.byte = 1,  .bits = 8}),
        field<&NodeInfo::node_type>        ({.byte = 2,  .bits = 8}),
        field<&NodeInfo::num_ports>        ({.byte = 3,  .bits = 8}),
        field<&NodeInfo::system_image_guid>({.byte = 4,  .bits = 64}),
        field<&NodeInfo::node_guid>        ({.byte = 12, .bits = 64}),
        field<&NodeInfo::port_guid>        ({.byte = 20, .bits = 64}),
        field<&NodeInfo::partition_cap>    ({.byte = 28, .bits = 16}),
        field<&NodeInfo::device_id>        ({.byte = 30, .bits = 16}),
        field<&NodeInfo::revision>         ({.byte = 32, .bits = 32}),
        field<&NodeInfo::local_port_num>   ({.byte = 36, .bits = 8}),
        field<&NodeInfo::vendor_id>        ({.byte = 37, .bits = 24}));
  }
};

// Describes a switch (vol1 14.2.5.4).
struct SwitchInfo {
  std::uint16_t linear_fdb_cap{};
  std::uint16_t random_fdb_cap{};
  std::uint16_t multicast_fdb_cap{};
  std::uint16_t linear_fdb_top{};
  std::uint8_t default_port{};
  std::uint8_t default_multicast_primary_port{};
  std::uint8_t default_multicast_not_primary_port{};
  std::uint8_t life_time_value{};  // 5 bits
  bool port_state_change{};
  std::uint8_t optimized_sl_to_vl{};  // 2 bits
  std::uint16_t lids_per_port{};
  std::uint16_t partition_enforcement_cap{};
  bool inbound_enforcement_cap{};
  bool outbound_enforcement_cap{};
  bool filter_raw_inbound_cap{};
  bool filter_raw_outbound_cap{};
  bool enhanced_port_0{};
  std::uint16_t multicast_fdb_top{};

  friend bool operator==(const SwitchInfo&, const SwitchInfo&) = default;

  static consteval auto layout() {
    return wire::layout<20>(
        field<&SwitchInfo::linear_fdb_cap>                    ({.byte = 0,            .bits = 16}),
        field<&SwitchInfo::random_fdb_cap>                    ({.byte = 2,            .bits = 16}),
        field<&SwitchInfo::multicast_fdb_cap>                 ({.byte = 4,            .bits = 16}),
        field<&SwitchInfo::linear_fdb_top>                    ({.byte = 6,            .bits = 16}),
        field<&SwitchInfo::default_port>                      ({.byte = 8,            .bits = 8}),
        field<&SwitchInfo::default_multicast_primary_port>    ({.byte = 9,            .bits = 8}),
        field<&SwitchInfo::default_multicast_not_primary_port>({.byte = 10,           .bits = 8}),
        field<&SwitchInfo::life_time_value>                   ({.byte = 11, .bit = 0, .bits = 5}),
        field<&SwitchInfo::port_state_change>                 ({.byte = 11, .bit = 5, .bits = 1}),
        field<&SwitchInfo::optimized_sl_to_vl>                ({.byte = 11, .bit = 6, .bits = 2}),
        field<&SwitchInfo::lids_per_port>                     ({.byte = 12,           .bits = 16}),
        field<&SwitchInfo::partition_enforcement_cap>         ({.byte = 14,           .bits = 16}),
        field<&SwitchInfo::inbound_enforcement_cap>           ({.byte = 16, .bit = 0, .bits = 1}),
        field<&SwitchInfo::outbound_enforcement_cap>          ({.byte = 16, .bit = 1, .bits = 1}),
        field<&SwitchInfo::filter_raw_inbound_cap>            ({.byte = 16, .bit = 2, .bits = 1}),
        field<&SwitchInfo::filter_raw_outbound_cap>           ({.byte = 16, .bit = 3, .bits = 1}),
        field<&SwitchInfo::enhanced_port_0>                   ({.byte = 16, .bit = 4, .bits = 1}),
        field<&SwitchInfo::multicast_fdb_top>                 ({.byte = 18,           .bits = 16}));
  }
};

// Names the states of a subnet manager (vol1 14.2.5.13).
enum class SmState : std::uint8_t { kNotActive = 0, kDiscovering = 1, kStandby = 2, kMaster = 3 };

struct SmInfo {
  Guid guid{};
  std::uint64_t sm_key{};
  std::uint32_t act_count{};
  std::uint8_t priority{};  // 4 bits
  SmState sm_state{};

  friend bool operator==(const SmInfo&, const SmInfo&) = default;

  static consteval auto layout() {
    return wire::layout<21>(
        field<&SmInfo::guid>     ({.byte = 0,            .bits = 64}),
        field<&SmInfo::sm_key>   ({.byte = 8,            .bits = 64}),
        field<&SmInfo::act_count>({.byte = 16,           .bits = 32}),
        field<&SmInfo::priority> ({.byte = 20, .bit = 0, .bits = 4}),
        field<&SmInfo::sm_state> ({.byte = 20, .bit = 4, .bits = 4}));
  }
};
// clang-format on

// The following constants are the sizes of tables and of their blocks.  An SMP contains one block,
// and its attribute modifier contains the number of the block.
inline constexpr std::size_t kGuidsPerBlock = 8;
inline constexpr std::size_t kPkeysPerBlock = 32;
inline constexpr std::size_t kLftPortsPerBlock = 64;
inline constexpr std::size_t kMftMasksPerBlock = 32;
inline constexpr std::size_t kMftPortsPerMask = 16;
inline constexpr std::size_t kVlArbitrationEntriesPerBlock = 32;
inline constexpr std::size_t kServiceLevels = 16;

// An entry of a LinearForwardingTable with this value discards the packet (vol1 14.2.5.10).
inline constexpr std::uint8_t kLftNoPort = 0xff;

// Contains GUIDs of a port (vol1 14.2.5.5).
using GuidBlock = std::array<Guid, kGuidsPerBlock>;
GuidBlock decode_guids(const SmpData& data);
SmpData encode_guids(const GuidBlock& block);

// Contains a part of a P_Key table (vol1 14.2.5.7).
using PkeyBlock = std::array<Pkey, kPkeysPerBlock>;
PkeyBlock decode_pkeys(const SmpData& data);
SmpData encode_pkeys(const PkeyBlock& block);

// Contains the virtual lane of each service level (vol1 14.2.5.8).
using SlToVl = std::array<std::uint8_t, kServiceLevels>;
SlToVl decode_sl_to_vl(const SmpData& data);
SmpData encode_sl_to_vl(const SlToVl& table);

// Contains an entry of the virtual lane arbitration table (vol1 14.2.5.9).
struct VlWeight {
  std::uint8_t virtual_lane{};  // 4 bits
  std::uint8_t weight{};        // in units of 64 bytes
  friend bool operator==(const VlWeight&, const VlWeight&) = default;
};
using VlArbitrationBlock = std::array<VlWeight, kVlArbitrationEntriesPerBlock>;
VlArbitrationBlock decode_vl_arbitration(const SmpData& data);
SmpData encode_vl_arbitration(const VlArbitrationBlock& block);

// Contains the output ports of 64 LIDs (vol1 14.2.5.10).
using LftBlock = std::array<std::uint8_t, kLftPortsPerBlock>;
LftBlock decode_lft(const SmpData& data);
SmpData encode_lft(const LftBlock& block);

// Contains a mask of the same 16 ports for each of 32 multicast LIDs (vol1 14.2.5.12).  Bit i
// represents port i of these 16 ports.
using MftBlock = std::array<std::uint16_t, kMftMasksPerBlock>;
MftBlock decode_mft(const SmpData& data);
SmpData encode_mft(const MftBlock& block);

// smp_data() encodes a message as the data of an SMP.  from_smp_data() decodes a message from the
// data.
template <Message M>
SmpData smp_data(const M& message) {
  static_assert(kSize<M> <= kSmpDataBytes);
  SmpData data{};
  encode_to(data, message);
  return data;
}
template <Message M>
M from_smp_data(const SmpData& data) {
  static_assert(kSize<M> <= kSmpDataBytes);
  return decode_exact<M>(std::span(data).template first<kSize<M>>());
}

}  // namespace verbena::wire
