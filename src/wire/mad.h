#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/strong.h"
#include "wire/layout.h"

// Defines management datagrams: the common header and the parts that all classes share (vol1 13.4).
namespace verbena::wire {

inline constexpr std::size_t kMadBytes = 256;
inline constexpr std::size_t kMadHeaderBytes = 24;
inline constexpr std::size_t kMadDataBytes = kMadBytes - kMadHeaderBytes;

inline constexpr Qpn kSmiQpn{0};
inline constexpr Qpn kGsiQpn{1};
inline constexpr Qkey kGsiQkey{0x80010000};  // the well-known Q_Key of QP1 (vol1 10.2.5)

inline constexpr std::uint8_t kMadBaseVersion = 1;

// Names the management classes (vol1 13.4.4).
enum class MgmtClass : std::uint8_t {
  kSubnetManagementLid = 0x01,
  kSubnetAdministration = 0x03,
  kPerformance = 0x04,
  kBaseboard = 0x05,
  kDeviceManagement = 0x06,
  kCommunication = 0x07,
  kSnmp = 0x08,
  kDeviceAdministration = 0x10,
  kBoot = 0x11,
  kBis = 0x12,
  kCongestion = 0x21,
  kVendorOuiFirst = 0x30,  // the classes up to kVendorOuiLast have an OUI and RMPP
  kVendorOuiLast = 0x4f,
  kSubnetManagementDirected = 0x81,
};

// Returns the version in which this stack implements a class.
constexpr std::uint8_t class_version(MgmtClass mgmt_class) {
  switch (mgmt_class) {
    case MgmtClass::kSubnetAdministration:
    case MgmtClass::kCommunication: return 2;
    default: return 1;
  }
}

// Names the methods without the response bit (vol1 13.4.5).  Only the SA uses the last four (vol1
// 15.2.2).
enum class Method : std::uint8_t {
  kGet = 0x01,
  kSet = 0x02,
  kSend = 0x03,
  kTrap = 0x05,
  kReport = 0x06,
  kTrapRepress = 0x07,
  kGetTable = 0x12,
  kGetTraceTable = 0x13,
  kGetMulti = 0x14,
  kDelete = 0x15,
};

// Names the values of the common status (vol1 13.4.7).  kBusy and kRedirect are bits.  The other
// values are codes in bits 2 to 4.  The class defines bits 8 to 15.
namespace mad_status {
inline constexpr std::uint16_t kBusy = 0x0001;
inline constexpr std::uint16_t kRedirect = 0x0002;
inline constexpr std::uint16_t kBadVersion = 0x0004;
inline constexpr std::uint16_t kMethodNotSupported = 0x0008;
inline constexpr std::uint16_t kMethodAttributeNotSupported = 0x000c;
inline constexpr std::uint16_t kInvalidValue = 0x001c;
}  // namespace mad_status

// clang-format off
// Describes the common header of all MADs (vol1 13.4.3).
struct MadHeader {
  std::uint8_t base_version{kMadBaseVersion};
  MgmtClass mgmt_class{};
  std::uint8_t class_version{};
  bool response{};
  Method method{};  // 7 bits
  std::uint16_t status{};
  std::uint16_t class_specific{};
  std::uint64_t transaction_id{};
  std::uint16_t attribute_id{};
  std::uint32_t attribute_modifier{};

  friend bool operator==(const MadHeader&, const MadHeader&) = default;

  static consteval auto layout() {
    return wire::layout<kMadHeaderBytes>(
        field<&MadHeader::base_version>      ({.byte = 0,           .bits = 8}),
        field<&MadHeader::mgmt_class>        ({.byte = 1,           .bits = 8}),
        field<&MadHeader::class_version>     ({.byte = 2,           .bits = 8}),
        field<&MadHeader::response>          ({.byte = 3, .bit = 0, .bits = 1}),
        field<&MadHeader::method>            ({.byte = 3, .bit = 1, .bits = 7}),
        field<&MadHeader::status>            ({.byte = 4,           .bits = 16}),
        field<&MadHeader::class_specific>    ({.byte = 6,           .bits = 16}),
        field<&MadHeader::transaction_id>    ({.byte = 8,           .bits = 64}),
        field<&MadHeader::attribute_id>      ({.byte = 16,          .bits = 16}),
        field<&MadHeader::attribute_modifier>({.byte = 20,          .bits = 32}));
  }
};

inline constexpr std::uint16_t kAttributeClassPortInfo = 0x0001;

// Describes the attribute ClassPortInfo (vol1 13.4.8.1), which contains the capabilities of a class
// and the destinations of its requests and traps.  The class determines the byte of the MAD at
// which ClassPortInfo begins: 24 for the CM, 56 for the SA, 64 for performance management.
struct ClassPortInfo {
  std::uint8_t base_version{kMadBaseVersion};
  std::uint8_t class_version{};
  std::uint16_t capability_mask{};
  std::uint32_t capability_mask2{};  // 27 bits
  std::uint8_t resp_time_value{};    // timeout code, 5 bits
  Gid redirect_gid{};
  std::uint8_t redirect_tc{};
  std::uint8_t redirect_sl{};
  std::uint32_t redirect_fl{};
  Lid redirect_lid{};
  Pkey redirect_pkey{};
  Qpn redirect_qpn{};
  Qkey redirect_qkey{};
  Gid trap_gid{};
  std::uint8_t trap_tc{};
  std::uint8_t trap_sl{};
  std::uint32_t trap_fl{};
  Lid trap_lid{};
  Pkey trap_pkey{};
  std::uint8_t trap_hl{};
  Qpn trap_qpn{};
  Qkey trap_qkey{};

  friend bool operator==(const ClassPortInfo&, const ClassPortInfo&) = default;

  static consteval auto layout() {
    return wire::layout<72>(
        field<&ClassPortInfo::base_version>    ({.byte = 0,            .bits = 8}),
        field<&ClassPortInfo::class_version>   ({.byte = 1,            .bits = 8}),
        field<&ClassPortInfo::capability_mask> ({.byte = 2,            .bits = 16}),
        field<&ClassPortInfo::capability_mask2>({.byte = 4,            .bits = 27}),
        field<&ClassPortInfo::resp_time_value> ({.byte = 7,  .bit = 3, .bits = 5}),
        field<&ClassPortInfo::redirect_gid>    ({.byte = 8,            .bits = 128}),
        field<&ClassPortInfo::redirect_tc>     ({.byte = 24,           .bits = 8}),
        field<&ClassPortInfo::redirect_sl>     ({.byte = 25, .bit = 0, .bits = 4}),
        field<&ClassPortInfo::redirect_fl>     ({.byte = 25, .bit = 4, .bits = 20}),
        field<&ClassPortInfo::redirect_lid>    ({.byte = 28,           .bits = 16}),
        field<&ClassPortInfo::redirect_pkey>   ({.byte = 30,           .bits = 16}),
        field<&ClassPortInfo::redirect_qpn>    ({.byte = 33,           .bits = 24}),
        field<&ClassPortInfo::redirect_qkey>   ({.byte = 36,           .bits = 32}),
        field<&ClassPortInfo::trap_gid>        ({.byte = 40,           .bits = 128}),
        field<&ClassPortInfo::trap_tc>         ({.byte = 56,           .bits = 8}),
        field<&ClassPortInfo::trap_sl>         ({.byte = 57, .bit = 0, .bits = 4}),
        field<&ClassPortInfo::trap_fl>         ({.byte = 57, .bit = 4, .bits = 20}),
        field<&ClassPortInfo::trap_lid>        ({.byte = 60,           .bits = 16}),
        field<&ClassPortInfo::trap_pkey>       ({.byte = 62,           .bits = 16}),
        field<&ClassPortInfo::trap_hl>         ({.byte = 64,           .bits = 8}),
        field<&ClassPortInfo::trap_qpn>        ({.byte = 65,           .bits = 24}),
        field<&ClassPortInfo::trap_qkey>       ({.byte = 68,           .bits = 32}));
  }
};
// clang-format on

}  // namespace verbena::wire
