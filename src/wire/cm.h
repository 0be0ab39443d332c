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

// Provides the messages of communication management (vol1 12.6, 12.11): the eleven messages as one
// type, and their conversion from and to MADs.  The tables are in cm_connection.h and cm_other.h.
namespace verbena::wire::cm {

using Message = std::variant<Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep, Lap, Apr>;

inline constexpr std::uint8_t kClassVersion = 2;

constexpr AttributeId attribute_id(const Message& message) {
  return std::visit([](const auto& m) { return m.kAttributeId; }, message);
}

// Returns the name of a message in the specification: "REQ", "SIDR_REP".
const char* to_string(AttributeId id);

// Returns the header of a CM MAD: class 7, version 2, method Send.  The modifier has the options of
// enhanced connection establishment in REQ, REP and SIDR_REP; it is 0 in the others.
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

// Encodes a whole MAD.  Replaces the header's attribute id by that of the message.
std::array<std::byte, kMadBytes> encode_mad(const MadHeader& header, const Message& message);

}  // namespace verbena::wire::cm
