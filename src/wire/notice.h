#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/strong.h"
#include "wire/layout.h"

// Defines the attribute Notice (vol1 13.4.8.2) and the details of the traps of subnet management
// (vol1 14.2.5.1).  A node reports an event by a trap, which contains a Notice.
namespace verbena::wire {

inline constexpr std::size_t kNoticeDetailsBytes = 54;

enum class NoticeType : std::uint8_t {
  kFatal = 0,
  kUrgent = 1,
  kSecurity = 2,
  kSubnetManagement = 3,
  kInformational = 4,
};

enum class TrapNumber : std::uint16_t {
  kGidInService = 64,  // the SA sends the traps 64 to 69
  kGidOutOfService = 65,
  kMulticastGroupCreated = 66,
  kMulticastGroupDeleted = 67,
  kUnpath = 68,  // paths are no longer valid
  kRepath = 69,  // paths have changed
  kLinkStateChange = 128,
  kLocalChange = 144,  // the capability mask or another value of a port has changed
  kBadMkey = 256,
  kBadPkey = 257,
  kBadQkey = 258,
  kBadPkeyAtSwitch = 259,
};

// clang-format off
// Describes the attribute Notice of an SMP.  In other classes, the GID of the issuer follows the
// Notice (see SaNotice).
struct Notice {
  bool is_generic{true};
  NoticeType type{};            // 7 bits
  std::uint32_t producer{};     // 24 bits; 1 is a channel adapter, 2 is a switch
  TrapNumber trap_number{};
  Lid issuer{};
  bool toggle{};
  std::uint16_t count{};        // 15 bits
  std::array<std::byte, kNoticeDetailsBytes> details{};

  friend bool operator==(const Notice&, const Notice&) = default;

  static consteval auto layout() {
    return wire::layout<64>(
        field<&Notice::is_generic> ({.byte = 0, .bit = 0, .bits = 1}),
        field<&Notice::type>       ({.byte = 0, .bit = 1, .bits = 7}),
        field<&Notice::producer>   ({.byte = 1,           .bits = 24}),
        field<&Notice::trap_number>({.byte = 4,           .bits = 16}),
        field<&Notice::issuer>     ({.byte = 6,           .bits = 16}),
        field<&Notice::toggle>     ({.byte = 8, .bit = 0, .bits = 1}),
        field<&Notice::count>      ({.byte = 8, .bit = 1, .bits = 15}),
        field<&Notice::details>    ({.byte = 10,          .bits = 432}));
  }
};

// Trap 128 reports that the state of a port of a switch has changed.
struct LinkStateChange {
  Lid switch_lid{};

  friend bool operator==(const LinkStateChange&, const LinkStateChange&) = default;

  static consteval auto layout() {
    return wire::layout<kNoticeDetailsBytes>(
        field<&LinkStateChange::switch_lid>({.byte = 0, .bits = 16}));
  }
};

// Trap 144 reports that the node has changed the capabilities or another value of its own port.
struct LocalChange {
  Lid lid{};
  bool other_local_changes{};  // change_flags contains the details
  std::uint32_t capability_mask{};
  std::uint16_t change_flags{};
  std::uint16_t capability_mask2{};

  friend bool operator==(const LocalChange&, const LocalChange&) = default;

  static consteval auto layout() {
    return wire::layout<kNoticeDetailsBytes>(
        field<&LocalChange::lid>                ({.byte = 2,           .bits = 16}),
        field<&LocalChange::other_local_changes>({.byte = 5, .bit = 7, .bits = 1}),
        field<&LocalChange::capability_mask>    ({.byte = 6,           .bits = 32}),
        field<&LocalChange::change_flags>       ({.byte = 10,          .bits = 16}),
        field<&LocalChange::capability_mask2>   ({.byte = 12,          .bits = 16}));
  }
};

// Trap 256 reports a management datagram with a wrong M_Key.
struct BadMkey {
  Lid lid{};
  Lid dr_source{};
  std::uint8_t method{};
  std::uint16_t attribute_id{};
  std::uint32_t attribute_modifier{};
  std::uint64_t m_key{};
  bool is_directed{};
  bool path_is_truncated{};
  std::uint8_t hop_count{};  // 6 bits
  std::array<std::byte, 30> return_path{};

  friend bool operator==(const BadMkey&, const BadMkey&) = default;

  static consteval auto layout() {
    return wire::layout<kNoticeDetailsBytes>(
        field<&BadMkey::lid>               ({.byte = 2,            .bits = 16}),
        field<&BadMkey::dr_source>         ({.byte = 4,            .bits = 16}),
        field<&BadMkey::method>            ({.byte = 6,            .bits = 8}),
        field<&BadMkey::attribute_id>      ({.byte = 8,            .bits = 16}),
        field<&BadMkey::attribute_modifier>({.byte = 10,           .bits = 32}),
        field<&BadMkey::m_key>             ({.byte = 14,           .bits = 64}),
        field<&BadMkey::is_directed>       ({.byte = 23, .bit = 0, .bits = 1}),
        field<&BadMkey::path_is_truncated> ({.byte = 23, .bit = 1, .bits = 1}),
        field<&BadMkey::hop_count>         ({.byte = 23, .bit = 2, .bits = 6}),
        field<&BadMkey::return_path>       ({.byte = 24,           .bits = 240}));
  }
};

// Traps 257 and 258 report a packet with a wrong P_Key or Q_Key.
struct BadKey {
  Lid source{};
  Lid destination{};
  std::uint32_t key{};
  std::uint8_t service_level{};  // 4 bits
  Qpn source_qpn{};
  Qpn destination_qpn{};
  Gid source_gid{};
  Gid destination_gid{};

  friend bool operator==(const BadKey&, const BadKey&) = default;

  static consteval auto layout() {
    return wire::layout<kNoticeDetailsBytes>(
        field<&BadKey::source>         ({.byte = 2,            .bits = 16}),
        field<&BadKey::destination>    ({.byte = 4,            .bits = 16}),
        field<&BadKey::key>            ({.byte = 6,            .bits = 32}),
        field<&BadKey::service_level>  ({.byte = 10, .bit = 0, .bits = 4}),
        field<&BadKey::source_qpn>     ({.byte = 11,           .bits = 24}),
        field<&BadKey::destination_qpn>({.byte = 15,           .bits = 24}),
        field<&BadKey::source_gid>     ({.byte = 18,           .bits = 128}),
        field<&BadKey::destination_gid>({.byte = 34,           .bits = 128}));
  }
};

// Trap 259 reports that a switch has dropped a packet because of its P_Key.
struct BadPkeyAtSwitch {
  std::uint16_t data_valid{};  // the k...Valid bits of the fields that contain a value
  Lid source{};
  Lid destination{};
  Pkey pkey{};
  std::uint8_t service_level{};  // 4 bits
  Qpn source_qpn{};
  Qpn destination_qpn{};
  Gid source_gid{};
  Gid destination_gid{};
  Lid switch_lid{};
  std::uint8_t port{};

  static constexpr std::uint16_t kLidsValid = 0x0003;
  static constexpr std::uint16_t kPkeyValid = 0x0004;
  static constexpr std::uint16_t kServiceLevelValid = 0x0008;
  static constexpr std::uint16_t kSourceQpnValid = 0x0010;
  static constexpr std::uint16_t kDestinationQpnValid = 0x0020;
  static constexpr std::uint16_t kGidsValid = 0x00c0;

  friend bool operator==(const BadPkeyAtSwitch&, const BadPkeyAtSwitch&) = default;

  static consteval auto layout() {
    return wire::layout<kNoticeDetailsBytes>(
        field<&BadPkeyAtSwitch::data_valid>     ({.byte = 0,           .bits = 16}),
        field<&BadPkeyAtSwitch::source>         ({.byte = 2,           .bits = 16}),
        field<&BadPkeyAtSwitch::destination>    ({.byte = 4,           .bits = 16}),
        field<&BadPkeyAtSwitch::pkey>           ({.byte = 6,           .bits = 16}),
        field<&BadPkeyAtSwitch::service_level>  ({.byte = 8, .bit = 0, .bits = 4}),
        field<&BadPkeyAtSwitch::source_qpn>     ({.byte = 9,           .bits = 24}),
        field<&BadPkeyAtSwitch::destination_qpn>({.byte = 13,          .bits = 24}),
        field<&BadPkeyAtSwitch::source_gid>     ({.byte = 16,          .bits = 128}),
        field<&BadPkeyAtSwitch::destination_gid>({.byte = 32,          .bits = 128}),
        field<&BadPkeyAtSwitch::switch_lid>     ({.byte = 48,          .bits = 16}),
        field<&BadPkeyAtSwitch::port>           ({.byte = 50,          .bits = 8}));
  }
};
// clang-format on

}  // namespace verbena::wire
