#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/layout.h"
#include "wire/mad.h"

// Defines the reliable multi-packet protocol (RMPP), which splits a management message into several
// MADs (vol1 13.6).
namespace verbena::wire {

inline constexpr std::uint8_t kRmppVersion = 1;
inline constexpr std::size_t kRmppHeaderBytes = 12;  // the header follows the MAD header
// kRmppPayloadBytes is the number of bytes of a segment after the RMPP header.  The payload length
// in RmppHeader is a number of such bytes, which include the header of the class.
inline constexpr std::size_t kRmppPayloadBytes = kMadDataBytes - kRmppHeaderBytes;

// Names the types of RMPP packets (vol1 13.6.2.1).
enum class RmppType : std::uint8_t { kNone = 0, kData = 1, kAck = 2, kStop = 3, kAbort = 4 };

// Names the reasons of STOP and ABORT (vol1 13.6.2.1, table 176).
enum class RmppStatus : std::uint8_t {
  kNormal = 0,
  kResourcesExhausted = 1,
  kTotalTimeTooLong = 118,
  kBadSegment = 120,
  kBadType = 121,
  kWindowTooSmall = 122,
  kSegmentTooBig = 123,
  kBadStatus = 124,
  kUnsupportedVersion = 125,
  kTooManyRetries = 126,
};

// clang-format off
struct RmppHeader {
  std::uint8_t version{kRmppVersion};
  RmppType type{};
  std::uint8_t response_time{};  // timeout code, 5 bits
  bool last{};
  bool first{};
  bool active{};
  RmppStatus status{};
  std::uint32_t segment{};  // counts from 1; an ACK contains the last segment that has arrived
  // The first segment contains the payload length of all segments.  The last of several segments
  // contains its own payload length.  An ACK contains the number of the last segment that the
  // receiver accepts.
  std::uint32_t length_or_window{};

  friend bool operator==(const RmppHeader&, const RmppHeader&) = default;

  static consteval auto layout() {
    return wire::layout<kRmppHeaderBytes>(
        field<&RmppHeader::version>         ({.byte = 0,           .bits = 8}),
        field<&RmppHeader::type>            ({.byte = 1,           .bits = 8}),
        field<&RmppHeader::response_time>   ({.byte = 2, .bit = 0, .bits = 5}),
        field<&RmppHeader::last>            ({.byte = 2, .bit = 5, .bits = 1}),
        field<&RmppHeader::first>           ({.byte = 2, .bit = 6, .bits = 1}),
        field<&RmppHeader::active>          ({.byte = 2, .bit = 7, .bits = 1}),
        field<&RmppHeader::status>          ({.byte = 3,           .bits = 8}),
        field<&RmppHeader::segment>         ({.byte = 4,           .bits = 32}),
        field<&RmppHeader::length_or_window>({.byte = 8,           .bits = 32}));
  }
};
// clang-format on

constexpr bool is_vendor_class_with_oui(MgmtClass mgmt_class) {
  return mgmt_class >= MgmtClass::kVendorOuiFirst && mgmt_class <= MgmtClass::kVendorOuiLast;
}

// Returns true if MADs of the class have an RMPP header (vol1 13.6.2).
constexpr bool has_rmpp(MgmtClass mgmt_class) {
  switch (mgmt_class) {
    case MgmtClass::kSubnetAdministration:
    case MgmtClass::kDeviceManagement:
    case MgmtClass::kDeviceAdministration:
    case MgmtClass::kBis: return true;
    default: return is_vendor_class_with_oui(mgmt_class);
  }
}

// Returns the number of bytes of all headers of a MAD of the class.  Every segment of a message
// repeats these headers.
constexpr std::size_t class_header_bytes(MgmtClass mgmt_class) {
  switch (mgmt_class) {
    case MgmtClass::kSubnetAdministration: return 56;  // vol1 15.2.1.1
    case MgmtClass::kDeviceManagement:
    case MgmtClass::kDeviceAdministration:
    case MgmtClass::kBis: return 64;
    default:  // vol1 16.5.1: a reserved byte and the OUI
      return is_vendor_class_with_oui(mgmt_class) ? 40 : kMadHeaderBytes;
  }
}

}  // namespace verbena::wire
