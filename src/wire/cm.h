#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "base/error.h"
#include "wire/cm_common.h"
#include "wire/cm_connection.h"
#include "wire/cm_other.h"
#include "wire/mad.h"

// Communication management on the wire (vol1 12.6, 12.11): the eleven messages as one type, from
// and to the MADs that carry them.  The tables are in cm_connection.h and cm_other.h.
namespace verbena::wire::cm {

using Message = std::variant<Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep, Lap, Apr>;

inline constexpr std::uint8_t kClassVersion = 2;

constexpr AttributeId attribute_id(const Message& message) {
  return std::visit([](const auto& m) { return m.kAttributeId; }, message);
}

// The name of a message in the spec: "REQ", "SIDR_REP".
const char* to_string(AttributeId id);

// The header of every CM MAD: class 7, version 2, method Send.  REQ, REP and SIDR_REP have the
// options of enhanced connection establishment in the modifier, the others nothing.
constexpr MadHeader mad_header(AttributeId attribute, std::uint64_t transaction_id,
                               std::uint32_t attribute_modifier = 0) {
  return {.mgmt_class = MgmtClass::kCommunication,
          .class_version = kClassVersion,
          .method = Method::kSend,
          .transaction_id = transaction_id,
          .attribute_id = static_cast<std::uint16_t>(attribute),
          .attribute_modifier = attribute_modifier};
}

// The message in the 232 bytes behind a MAD's header.  Fails with kMalformed: kTooShort, or
// kUnknownAttribute for an attribute that is none of the eleven.
Result<Message> decode_message(std::uint16_t attribute_id, std::span<const std::byte> mad_data);

// A whole MAD.  The attribute id is the message's, whatever the header says.
std::array<std::byte, kMadBytes> encode_mad(const MadHeader& header, const Message& message);

}  // namespace verbena::wire::cm
