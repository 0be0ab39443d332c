#include "wire/cm.h"

#include <algorithm>
#include <utility>

namespace verbena::wire::cm {
namespace {

template <class M>
Result<Message> decode_as(std::span<const std::byte> mad_data) {
  return Message(std::in_place_type<M>, VB_TRY(decode<M>(mad_data)));
}

}  // namespace

const char* to_string(AttributeId id) {
  switch (id) {
    case AttributeId::kClassPortInfo: return "ClassPortInfo";
    case AttributeId::kReq: return "REQ";
    case AttributeId::kMra: return "MRA";
    case AttributeId::kRej: return "REJ";
    case AttributeId::kRep: return "REP";
    case AttributeId::kRtu: return "RTU";
    case AttributeId::kDreq: return "DREQ";
    case AttributeId::kDrep: return "DREP";
    case AttributeId::kSidrReq: return "SIDR_REQ";
    case AttributeId::kSidrRep: return "SIDR_REP";
    case AttributeId::kLap: return "LAP";
    case AttributeId::kApr: return "APR";
  }
  return "unknown";
}

Result<Message> decode_message(std::uint16_t attribute_id, std::span<const std::byte> mad_data) {
  switch (static_cast<AttributeId>(attribute_id)) {
    case AttributeId::kReq: return decode_as<Req>(mad_data);
    case AttributeId::kMra: return decode_as<Mra>(mad_data);
    case AttributeId::kRej: return decode_as<Rej>(mad_data);
    case AttributeId::kRep: return decode_as<Rep>(mad_data);
    case AttributeId::kRtu: return decode_as<Rtu>(mad_data);
    case AttributeId::kDreq: return decode_as<Dreq>(mad_data);
    case AttributeId::kDrep: return decode_as<Drep>(mad_data);
    case AttributeId::kSidrReq: return decode_as<SidrReq>(mad_data);
    case AttributeId::kSidrRep: return decode_as<SidrRep>(mad_data);
    case AttributeId::kLap: return decode_as<Lap>(mad_data);
    case AttributeId::kApr: return decode_as<Apr>(mad_data);
    case AttributeId::kClassPortInfo: break;
  }
  return drop(Drop::kUnknownAttribute);
}

std::array<std::byte, kMadBytes> encode_mad(const MadHeader& header, const Message& message) {
  MadHeader message_header = header;
  message_header.attribute_id = std::to_underlying(attribute_id(message));
  std::array<std::byte, kMadBytes> mad;
  const std::span<std::byte> out = mad;
  encode_to(out, message_header);
  std::visit([&](const auto& m) { encode_to(out.subspan<kMadHeaderBytes>(), m); }, message);
  return mad;
}

}  // namespace verbena::wire::cm
