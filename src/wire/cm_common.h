#pragma once

#include <cstddef>
#include <cstdint>

#include "base/strong.h"
#include "wire/layout.h"
#include "wire/mad.h"

// Defines numbers and structures that the CM messages share (vol1 12.6).  Include wire/cm.h instead
// of this file.
namespace verbena::wire::cm {

// Every message fills the part of a MAD after the common header.  As in the specification, the
// offsets in the tables begin after this header.
inline constexpr std::size_t kMessageBytes = kMadDataBytes;

// Names the attributes of the CM class (vol1 16.7.2).
enum class AttributeId : std::uint16_t {
  kClassPortInfo = 0x0001,
  kReq = 0x0010,
  kMra = 0x0011,
  kRej = 0x0012,
  kRep = 0x0013,
  kRtu = 0x0014,
  kDreq = 0x0015,
  kDrep = 0x0016,
  kSidrReq = 0x0017,
  kSidrRep = 0x0018,
  kLap = 0x0019,
  kApr = 0x001a,
};

// A peer may send values that the following enumerations do not name.
enum class TransportService : std::uint8_t { kRc = 0, kUc = 1, kRd = 2, kExtended = 3 };
inline constexpr std::uint8_t kExtendedTransportXrc = 1;

enum class MraSubject : std::uint8_t { kReq = 0, kRep = 1, kLap = 2 };
enum class RejSubject : std::uint8_t { kReq = 0, kRep = 1, kOther = 2 };
enum class FailoverAccepted : std::uint8_t { kAccepted = 0, kNotSupported = 1, kRejected = 2 };

// Names the reasons of a REJ (vol1 12.6.7.2).  The comments describe the additional reject
// information that some of them have.
enum class RejReason : std::uint16_t {
  kNoQp = 1,
  kNoEec = 2,
  kNoResources = 3,
  kTimeout = 4,  // contains the CA GUID of the sender
  kUnsupportedRequest = 5,
  kInvalidCommId = 6,
  kInvalidCommInstance = 7,
  kInvalidServiceId = 8,
  kInvalidTransportType = 9,
  kStaleConnection = 10,
  kRdcDoesNotExist = 11,
  kPrimaryGidRejected = 12,  // contains an acceptable GID
  kPrimaryLidRejected = 13,
  kInvalidPrimarySl = 14,
  kInvalidPrimaryTrafficClass = 15,
  kInvalidPrimaryHopLimit = 16,
  kInvalidPrimaryPacketRate = 17,
  kAlternateGidRejected = 18,  // contains an acceptable GID
  kAlternateLidRejected = 19,
  kInvalidAlternateSl = 20,
  kInvalidAlternateTrafficClass = 21,
  kInvalidAlternateHopLimit = 22,
  kInvalidAlternatePacketRate = 23,
  kPortAndCmRedirect = 24,
  kPortRedirect = 25,
  kInvalidPathMtu = 26,
  kInsufficientResponderResources = 27,
  kConsumer = 28,
  kRnrRetryCountInvalid = 29,
  kDuplicateLocalCommId = 30,
  kUnsupportedClassVersion = 31,
  kInvalidPrimaryFlowLabel = 32,
  kInvalidAlternateFlowLabel = 33,
  kVendorOptionNotSupported = 35,
};

// Returns a name for events and messages, or "unknown" for numbers without a name.
const char* to_string(RejReason reason);

// Names the status of an APR (vol1 12.6.16, table 123).
enum class AprStatus : std::uint8_t {
  kAccepted = 0,
  kInvalidCommId = 1,
  kNotSupported = 2,
  kRejected = 3,
  kRedirect = 4,
  kIsCurrentPath = 5,
  kInvalidQpn = 6,
  kLidRejected = 7,
  kGidRejected = 8,
  kFlowLabelRejected = 9,
  kTrafficClassRejected = 10,
  kHopLimitRejected = 11,
  kPacketRateRejected = 12,
  kSlRejected = 13,
};

// Names the status of a SIDR_REP (vol1 12.11.2, table 128).
enum class SidrStatus : std::uint8_t {
  kValid = 0,
  kServiceIdNotSupported = 1,
  kRejected = 2,
  kNoQp = 3,
  kRedirect = 4,
  kVersionNotSupported = 5,
};
const char* to_string(SidrStatus status);

// clang-format off
// Describes the primary or alternate path in a REQ (vol1 12.6.5).  LIDs are 0xffff on RoCE.  Bit 5
// of byte 43 is not part of the path, because the alternate path of a REQ has the field
// sap_supported there.
struct Path {
  Lid local_lid{};
  Lid remote_lid{};
  Gid local_gid{};
  Gid remote_gid{};
  std::uint32_t flow_label{};  // 20 bits
  std::uint8_t packet_rate{};
  std::uint8_t traffic_class{};
  std::uint8_t hop_limit{};
  std::uint8_t sl{};
  bool subnet_local{};
  std::uint8_t local_ack_timeout{};  // timeout code

  friend bool operator==(const Path&, const Path&) = default;

  static consteval auto layout() {
    return wire::layout<44>(
        field<&Path::local_lid>        ({.byte = 0,            .bits = 16}),
        field<&Path::remote_lid>       ({.byte = 2,            .bits = 16}),
        field<&Path::local_gid>        ({.byte = 4,            .bits = 128}),
        field<&Path::remote_gid>       ({.byte = 20,           .bits = 128}),
        field<&Path::flow_label>       ({.byte = 36,           .bits = 20}),
        field<&Path::packet_rate>      ({.byte = 39, .bit = 2, .bits = 6}),
        field<&Path::traffic_class>    ({.byte = 40,           .bits = 8}),
        field<&Path::hop_limit>        ({.byte = 41,           .bits = 8}),
        field<&Path::sl>               ({.byte = 42, .bit = 0, .bits = 4}),
        field<&Path::subnet_local>     ({.byte = 42, .bit = 4, .bits = 1}),
        field<&Path::local_ack_timeout>({.byte = 43, .bit = 0, .bits = 5}));
  }
};
// clang-format on

}  // namespace verbena::wire::cm
