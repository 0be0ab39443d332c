#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/strong.h"
#include "wire/layout.h"
#include "wire/mad.h"
#include "wire/notice.h"
#include "wire/rmpp.h"

// Defines the messages of subnet administration (SA, vol1 15.2).  Hosts use them to ask the subnet
// manager for paths, to join multicast groups, to subscribe to notices and to register services.
namespace verbena::wire {

inline constexpr std::size_t kSaHeaderBytes = 56;  // the total size of the MAD, RMPP and SA headers
inline constexpr std::size_t kSaDataBytes = kMadBytes - kSaHeaderBytes;
static_assert(class_header_bytes(MgmtClass::kSubnetAdministration) == kSaHeaderBytes);

// Names the attributes of the SA (vol1 15.2.5).
enum class SaAttribute : std::uint16_t {
  kClassPortInfo = 0x0001,
  kNotice = 0x0002,
  kInformInfo = 0x0003,
  kServiceRecord = 0x0031,
  kPathRecord = 0x0035,
  kMcMemberRecord = 0x0038,
  kInformInfoRecord = 0x00f3,
};

// Names the status codes of the SA, which are bits 8 to 15 of the status of a MAD (vol1 15.2.3).
enum class SaStatus : std::uint8_t {
  kNone = 0,
  kNoResources = 1,
  kRequestInvalid = 2,
  kNoRecords = 3,
  kTooManyRecords = 4,
  kRequestInvalidGid = 5,
  kInsufficientComponents = 6,
  kRequestDenied = 7,
  kPriorityChangeSuggested = 8,
};
constexpr std::uint16_t mad_status_of(SaStatus status) {
  return static_cast<std::uint16_t>(static_cast<unsigned>(status) << 8);
}
constexpr SaStatus sa_status_of(std::uint16_t mad_status) {
  return static_cast<SaStatus>(mad_status >> 8);
}

// Determines how the SA compares a value in a request with its records (vol1 15.2.5.16).
enum class Selector : std::uint8_t { kGreater = 0, kLess = 1, kExactly = 2, kBest = 3 };

// clang-format off
// Describes all headers of an SA MAD (vol1 15.2.1.1).
struct SaHeader {
  MadHeader mad{};
  RmppHeader rmpp{};
  std::uint64_t sm_key{};
  std::uint16_t attribute_offset{};  // distance between two records, in units of 8 bytes
  std::uint64_t component_mask{};

  friend bool operator==(const SaHeader&, const SaHeader&) = default;

  static consteval auto layout() {
    return wire::layout<kSaHeaderBytes>(
        field<&SaHeader::mad>             ({.byte = 0,  .bits = 192}),
        field<&SaHeader::rmpp>            ({.byte = 24, .bits = 96}),
        field<&SaHeader::sm_key>          ({.byte = 36, .bits = 64}),
        field<&SaHeader::attribute_offset>({.byte = 44, .bits = 16}),
        field<&SaHeader::component_mask>  ({.byte = 48, .bits = 64}));
  }
};

// Describes a path between two ports (vol1 15.2.5.16).
struct PathRecord {
  ServiceId service_id{};
  Gid destination_gid{};
  Gid source_gid{};
  Lid destination_lid{};
  Lid source_lid{};
  bool raw_traffic{};
  std::uint32_t flow_label{};    // 20 bits
  std::uint8_t hop_limit{};
  std::uint8_t traffic_class{};
  bool reversible{};
  std::uint8_t numb_path{};      // 7 bits
  Pkey pkey{};
  std::uint16_t qos_class{};     // 12 bits
  std::uint8_t service_level{};  // 4 bits
  Selector mtu_selector{};
  std::uint8_t mtu{};            // 6 bits: 1 = 256 bytes .. 5 = 4096
  Selector rate_selector{};
  std::uint8_t rate{};           // 6 bits
  Selector packet_life_selector{};
  std::uint8_t packet_life{};    // 6 bits, timeout code
  std::uint8_t preference{};     // 0 is the most preferred

  friend bool operator==(const PathRecord&, const PathRecord&) = default;

  // Names the bits of a component mask for this record.
  struct Mask {
    static constexpr std::uint64_t kServiceId = 0b11;  // each half of the id has a bit
    static constexpr std::uint64_t kDestinationGid = 1 << 2;
    static constexpr std::uint64_t kSourceGid = 1 << 3;
    static constexpr std::uint64_t kDestinationLid = 1 << 4;
    static constexpr std::uint64_t kSourceLid = 1 << 5;
    static constexpr std::uint64_t kRawTraffic = 1 << 6;
    static constexpr std::uint64_t kFlowLabel = 1 << 8;
    static constexpr std::uint64_t kHopLimit = 1 << 9;
    static constexpr std::uint64_t kTrafficClass = 1 << 10;
    static constexpr std::uint64_t kReversible = 1 << 11;
    static constexpr std::uint64_t kNumbPath = 1 << 12;
    static constexpr std::uint64_t kPkey = 1 << 13;
    static constexpr std::uint64_t kQosClass = 1 << 14;
    static constexpr std::uint64_t kServiceLevel = 1 << 15;
    static constexpr std::uint64_t kMtu = 0b11 << 16;         // with its selector
    static constexpr std::uint64_t kRate = 0b11 << 18;        // with its selector
    static constexpr std::uint64_t kPacketLife = 0b11 << 20;  // with its selector
    static constexpr std::uint64_t kPreference = 1 << 22;
  };

  static consteval auto layout() {
    return wire::layout<64>(
        field<&PathRecord::service_id>          ({.byte = 0,            .bits = 64}),
        field<&PathRecord::destination_gid>     ({.byte = 8,            .bits = 128}),
        field<&PathRecord::source_gid>          ({.byte = 24,           .bits = 128}),
        field<&PathRecord::destination_lid>     ({.byte = 40,           .bits = 16}),
        field<&PathRecord::source_lid>          ({.byte = 42,           .bits = 16}),
        field<&PathRecord::raw_traffic>         ({.byte = 44, .bit = 0, .bits = 1}),
        field<&PathRecord::flow_label>          ({.byte = 44, .bit = 4, .bits = 20}),
        field<&PathRecord::hop_limit>           ({.byte = 47,           .bits = 8}),
        field<&PathRecord::traffic_class>       ({.byte = 48,           .bits = 8}),
        field<&PathRecord::reversible>          ({.byte = 49, .bit = 0, .bits = 1}),
        field<&PathRecord::numb_path>           ({.byte = 49, .bit = 1, .bits = 7}),
        field<&PathRecord::pkey>                ({.byte = 50,           .bits = 16}),
        field<&PathRecord::qos_class>           ({.byte = 52,           .bits = 12}),
        field<&PathRecord::service_level>       ({.byte = 53, .bit = 4, .bits = 4}),
        field<&PathRecord::mtu_selector>        ({.byte = 54, .bit = 0, .bits = 2}),
        field<&PathRecord::mtu>                 ({.byte = 54, .bit = 2, .bits = 6}),
        field<&PathRecord::rate_selector>       ({.byte = 55, .bit = 0, .bits = 2}),
        field<&PathRecord::rate>                ({.byte = 55, .bit = 2, .bits = 6}),
        field<&PathRecord::packet_life_selector>({.byte = 56, .bit = 0, .bits = 2}),
        field<&PathRecord::packet_life>         ({.byte = 56, .bit = 2, .bits = 6}),
        field<&PathRecord::preference>          ({.byte = 57,           .bits = 8}));
  }
};

// Names a bit of the SA's ClassPortInfo::capability_mask2 (vol1 15.2.5.17.2).
namespace sa_capability2 {
inline constexpr std::uint32_t kSendOnlyFullMember = 1U << 12;
}  // namespace sa_capability2

// Names the bits of the join state of a member (vol1 15.2.5.17.2).
namespace join_state {
inline constexpr std::uint8_t kFullMember = 1;
inline constexpr std::uint8_t kNonMember = 2;
inline constexpr std::uint8_t kSendOnlyNonMember = 4;
inline constexpr std::uint8_t kSendOnlyFullMember = 8;
inline constexpr std::uint8_t kAll = 15;
}  // namespace join_state

// Describes a multicast group and a member of the group (vol1 15.2.5.17).
struct McMemberRecord {
  Gid mgid{};
  Gid port_gid{};
  Qkey qkey{};
  Lid mlid{};
  Selector mtu_selector{};
  std::uint8_t mtu{};            // 6 bits
  std::uint8_t traffic_class{};
  Pkey pkey{};
  Selector rate_selector{};
  std::uint8_t rate{};           // 6 bits
  Selector packet_life_selector{};
  std::uint8_t packet_life{};    // 6 bits
  std::uint8_t service_level{};  // 4 bits
  std::uint32_t flow_label{};    // 20 bits
  std::uint8_t hop_limit{};
  std::uint8_t scope{};          // 4 bits
  std::uint8_t join_state{};     // 4 bits
  bool proxy_join{};

  friend bool operator==(const McMemberRecord&, const McMemberRecord&) = default;

  // Names the bits of a component mask for this record.
  struct Mask {
    static constexpr std::uint64_t kMgid = 1 << 0;
    static constexpr std::uint64_t kPortGid = 1 << 1;
    static constexpr std::uint64_t kQkey = 1 << 2;
    static constexpr std::uint64_t kMlid = 1 << 3;
    static constexpr std::uint64_t kMtu = 0b11 << 4;  // with its selector
    static constexpr std::uint64_t kTrafficClass = 1 << 6;
    static constexpr std::uint64_t kPkey = 1 << 7;
    static constexpr std::uint64_t kRate = 0b11 << 8;         // with its selector
    static constexpr std::uint64_t kPacketLife = 0b11 << 10;  // with its selector
    static constexpr std::uint64_t kServiceLevel = 1 << 12;
    static constexpr std::uint64_t kFlowLabel = 1 << 13;
    static constexpr std::uint64_t kHopLimit = 1 << 14;
    static constexpr std::uint64_t kScope = 1 << 15;
    static constexpr std::uint64_t kJoinState = 1 << 16;
    static constexpr std::uint64_t kProxyJoin = 1 << 17;
  };

  static consteval auto layout() {
    return wire::layout<52>(
        field<&McMemberRecord::mgid>                ({.byte = 0,            .bits = 128}),
        field<&McMemberRecord::port_gid>            ({.byte = 16,           .bits = 128}),
        field<&McMemberRecord::qkey>                ({.byte = 32,           .bits = 32}),
        field<&McMemberRecord::mlid>                ({.byte = 36,           .bits = 16}),
        field<&McMemberRecord::mtu_selector>        ({.byte = 38, .bit = 0, .bits = 2}),
        field<&McMemberRecord::mtu>                 ({.byte = 38, .bit = 2, .bits = 6}),
        field<&McMemberRecord::traffic_class>       ({.byte = 39,           .bits = 8}),
        field<&McMemberRecord::pkey>                ({.byte = 40,           .bits = 16}),
        field<&McMemberRecord::rate_selector>       ({.byte = 42, .bit = 0, .bits = 2}),
        field<&McMemberRecord::rate>                ({.byte = 42, .bit = 2, .bits = 6}),
        field<&McMemberRecord::packet_life_selector>({.byte = 43, .bit = 0, .bits = 2}),
        field<&McMemberRecord::packet_life>         ({.byte = 43, .bit = 2, .bits = 6}),
        field<&McMemberRecord::service_level>       ({.byte = 44, .bit = 0, .bits = 4}),
        field<&McMemberRecord::flow_label>          ({.byte = 44, .bit = 4, .bits = 20}),
        field<&McMemberRecord::hop_limit>           ({.byte = 47,           .bits = 8}),
        field<&McMemberRecord::scope>               ({.byte = 48, .bit = 0, .bits = 4}),
        field<&McMemberRecord::join_state>          ({.byte = 48, .bit = 4, .bits = 4}),
        field<&McMemberRecord::proxy_join>          ({.byte = 49, .bit = 0, .bits = 1}));
  }
};

// Describes a request to subscribe to notices, or to end a subscription (vol1 13.4.8.3).
struct InformInfo {
  Gid gid{};                         // the port that sends the notices; 0 if lid_begin is used
  Lid lid_begin{};                   // if gid is 0: the first LID of the ports, or kAnyLid
  Lid lid_end{};
  bool is_generic{true};             // uses a whole byte
  bool subscribe{};                  // uses a whole byte
  std::uint16_t type{};              // a NoticeType, or kAnyType
  std::uint16_t trap_number{};       // if is_generic is false, a device id
  Qpn qpn{};                         // to end a subscription: the QP of the subscriber
  std::uint8_t resp_time_value{};    // timeout code, 5 bits
  std::uint32_t producer_type{};     // 24 bits

  static constexpr Lid kAnyLid{0xffff};
  static constexpr std::uint16_t kAnyType = 0xffff;
  static constexpr std::uint32_t kAnyProducer = 0xffffff;

  friend bool operator==(const InformInfo&, const InformInfo&) = default;

  static consteval auto layout() {
    return wire::layout<36>(
        field<&InformInfo::gid>            ({.byte = 0,            .bits = 128}),
        field<&InformInfo::lid_begin>      ({.byte = 16,           .bits = 16}),
        field<&InformInfo::lid_end>        ({.byte = 18,           .bits = 16}),
        field<&InformInfo::is_generic>     ({.byte = 22, .bit = 7, .bits = 1}),
        field<&InformInfo::subscribe>      ({.byte = 23, .bit = 7, .bits = 1}),
        field<&InformInfo::type>           ({.byte = 24,           .bits = 16}),
        field<&InformInfo::trap_number>    ({.byte = 26,           .bits = 16}),
        field<&InformInfo::qpn>            ({.byte = 28,           .bits = 24}),
        field<&InformInfo::resp_time_value>({.byte = 31, .bit = 3, .bits = 5}),
        field<&InformInfo::producer_type>  ({.byte = 33,           .bits = 24}));
  }
};

// Describes a subscription in the SA's list of subscriptions (vol1 15.2.5.12).
struct InformInfoRecord {
  Gid subscriber_gid{};
  std::uint16_t subscriber_enum{};
  InformInfo inform_info{};

  friend bool operator==(const InformInfoRecord&, const InformInfoRecord&) = default;

  static consteval auto layout() {
    return wire::layout<60>(
        field<&InformInfoRecord::subscriber_gid> ({.byte = 0,  .bits = 128}),
        field<&InformInfoRecord::subscriber_enum>({.byte = 16, .bits = 16}),
        field<&InformInfoRecord::inform_info>    ({.byte = 24, .bits = 288}));
  }
};

// Describes the notice in a Report, and the GID of its issuer (vol1 13.4.8.2).
struct SaNotice {
  Notice notice{};
  Gid issuer_gid{};

  friend bool operator==(const SaNotice&, const SaNotice&) = default;

  static consteval auto layout() {
    return wire::layout<80>(
        field<&SaNotice::notice>    ({.byte = 0,  .bits = 512}),
        field<&SaNotice::issuer_gid>({.byte = 64, .bits = 128}));
  }
};

// Traps 64 to 67 report that a port or a multicast group was added or removed (vol1 14.2.5.1).
struct GidChange {
  Gid gid{};

  friend bool operator==(const GidChange&, const GidChange&) = default;

  static consteval auto layout() {
    return wire::layout<kNoticeDetailsBytes>(
        field<&GidChange::gid>({.byte = 6, .bits = 128}));
  }
};

// Describes a service that a port offers (vol1 15.2.5.14).
struct ServiceRecord {
  ServiceId service_id{};
  Gid service_gid{};
  Pkey service_pkey{};
  std::uint32_t lease_seconds{};
  std::array<std::byte, 16> key{};
  std::array<std::byte, 64> name{};  // UTF-8 text, padded with zeros
  // The data members contain 16 numbers of 8 bits, 8 of 16 bits, 4 of 32 bits and 2 of 64 bits.
  std::array<std::byte, 16> data8{};
  std::array<std::byte, 16> data16{};
  std::array<std::byte, 16> data32{};
  std::array<std::byte, 16> data64{};

  static constexpr std::uint32_t kLeaseForever = 0xffffffff;

  friend bool operator==(const ServiceRecord&, const ServiceRecord&) = default;

  // Names the bits of a component mask for this record.  kData has one bit for each number in the
  // data members.
  struct Mask {
    static constexpr std::uint64_t kServiceId = 1 << 0;
    static constexpr std::uint64_t kServiceGid = 1 << 1;
    static constexpr std::uint64_t kPkey = 1 << 2;
    static constexpr std::uint64_t kLease = 1 << 4;
    static constexpr std::uint64_t kKey = 1 << 5;
    static constexpr std::uint64_t kName = 1 << 6;
    static constexpr std::uint64_t kData = ((std::uint64_t{1} << 30) - 1) << 7;  // 30 bits
  };

  static consteval auto layout() {
    return wire::layout<176>(
        field<&ServiceRecord::service_id>   ({.byte = 0,   .bits = 64}),
        field<&ServiceRecord::service_gid>  ({.byte = 8,   .bits = 128}),
        field<&ServiceRecord::service_pkey> ({.byte = 24,  .bits = 16}),
        field<&ServiceRecord::lease_seconds>({.byte = 28,  .bits = 32}),
        field<&ServiceRecord::key>          ({.byte = 32,  .bits = 128}),
        field<&ServiceRecord::name>         ({.byte = 48,  .bits = 512}),
        field<&ServiceRecord::data8>        ({.byte = 112, .bits = 128}),
        field<&ServiceRecord::data16>       ({.byte = 128, .bits = 128}),
        field<&ServiceRecord::data32>       ({.byte = 144, .bits = 128}),
        field<&ServiceRecord::data64>       ({.byte = 160, .bits = 128}));
  }
};
// clang-format on

// Gives access to the records of a table that the SA has sent.
class SaTable {
 public:
  // Returns the table of the records in `data`, which are the bytes after the SA header.  Without
  // data, returns an empty table.  Fails with kMalformed if the offset is less than the size of a
  // record, or if the data ends within a record.
  template <Message Record>
  static Result<SaTable> of(std::span<const std::byte> data, std::uint16_t attribute_offset) {
    const std::size_t step = std::size_t{attribute_offset} * 8;
    if (data.empty()) return SaTable(data, kSize<Record>, 0);
    if (step < kSize<Record>) return drop(Drop::kTooShort);
    // The padding after the last record may be missing.
    const std::size_t complete_count = data.size() / step;
    const std::size_t rest_bytes = data.size() - complete_count * step;
    if (rest_bytes != 0 && rest_bytes < kSize<Record>) return drop(Drop::kTooShort);
    return SaTable(data, step, complete_count + (rest_bytes == 0 ? 0 : 1));
  }

  std::size_t size() const { return size_; }
  // REQUIRES: `index` is less than size(), and Record is the same as in the call of of().
  template <Message Record>
  Record at(std::size_t index) const {
    VB_CHECK(index < size_);
    return decode_exact<Record>(data_.subspan(index * step_).template first<kSize<Record>>());
  }

 private:
  SaTable(std::span<const std::byte> data, std::size_t step, std::size_t size)
      : data_(data), step_(step), size_(size) {}

  std::span<const std::byte> data_;
  std::size_t step_;
  std::size_t size_;
};

}  // namespace verbena::wire
