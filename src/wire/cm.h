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

// Provides the eleven messages of communication management (vol1 12.6, 12.11) as one type, and
// converts them from and to MADs.  Their tables are in cm_connection.h and cm_other.h.
namespace verbena::wire::cm {

using Message = std::variant<Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep, Lap, Apr>;

inline constexpr std::uint8_t kClassVersion = 2;

constexpr AttributeId attribute_id(const Message& message) {
  return std::visit([](const auto& m) { return m.kAttributeId; }, message);
}

// Returns the name of an attribute in the specification, such as "REQ" or "SIDR_REP", or "unknown".
const char* to_string(AttributeId id);

// Returns the header of a CM MAD: class 7, version 2, method Send.  The modifier of a REQ, REP or
// SIDR_REP contains the options of enhanced connection establishment.  The modifier of other
// messages is 0.
constexpr MadHeader mad_header(AttributeId attribute, std::uint64_t transaction_id,
                               std::uint32_t attribute_modifier = 0) {
  return {.mgmt_class = MgmtClass::kCommunication,
          .class_version = kClassVersion,
          .method = Method::kSend,
          .transaction_id = transaction_id,
          .attribute_id = static_cast<std::uint16_t>(attribute),
          .attribute_modifier = attribute_modifier};
}

// Decodes the message in the 232 bytes after a MAD's header.  Fails with kMalformed and a Drop:
// kTooShort, or kUnknownAttribute if the attribute is not one of the eleven messages.
Result<Message> decode_message(std::uint16_t attribute_id, std::span<const std::byte> mad_data);

// Encodes a whole MAD.  Replaces the attribute id of the header by the id of the message.
std::array<std::byte, kMadBytes> encode_mad(const MadHeader& header, const Message& message);

}  // namespace verbena::wire::cm
