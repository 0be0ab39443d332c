#include "fabric/packet_name.h"

#include "wire/cm.h"
#include "wire/headers.h"
#include "wire/mad.h"

namespace verbena::fabric {
namespace {

// Returns the full name of a message of a connection, as in vol1 12.6, and the abbreviation of
// other CM messages.
const char* cm_name(wire::cm::AttributeId id) {
  using enum wire::cm::AttributeId;
  switch (id) {
    case kReq: return "ConnectRequest";
    case kMra: return "MessageReceiptAck";
    case kRej: return "ConnectReject";
    case kRep: return "ConnectReply";
    case kRtu: return "ReadyToUse";
    case kDreq: return "DisconnectRequest";
    case kDrep: return "DisconnectReply";
    case kClassPortInfo:
    case kSidrReq:
    case kSidrRep:
    case kLap:
    case kApr: return wire::cm::to_string(id);
  }
  return "unknown CM message";
}

std::string mad_name(std::span<const std::byte> payload) {
  if (payload.size() < wire::kMadHeaderBytes) return "UD SEND only";
  const auto header = wire::decode_exact<wire::MadHeader>(payload.first<wire::kMadHeaderBytes>());
  if (header.mgmt_class != wire::MgmtClass::kCommunication) return "MAD";
  return cm_name(static_cast<wire::cm::AttributeId>(header.attribute_id));
}

const char* ack_name(const wire::Aeth& aeth) {
  switch (wire::kind(aeth)) {
    case wire::AethKind::kAck: return "ACK";
    case wire::AethKind::kRnrNak: return "RNR NAK";
    case wire::AethKind::kNak:
      return wire::nak_code(aeth) == wire::NakCode::kPsnSequenceError ? "sequence NAK" : "NAK";
    case wire::AethKind::kReserved: break;
  }
  return "reserved AETH";
}

const char* position_name(wire::Opcode op) {
  if (wire::is_first(op)) return " first";
  if (wire::is_middle(op)) return " middle";
  return wire::is_last(op) ? " last" : " only";
}

}  // namespace

std::string packet_name(std::span<const std::byte> transport) {
  const auto packet = wire::parse_transport(transport);
  if (!packet) return "malformed";
  const wire::Opcode op = packet->bth.opcode;
  if (wire::carries_deth(op)) {
    return packet->bth.destination_qpn == wire::kGsiQpn ? mad_name(packet->payload)
                                                        : "UD SEND only";
  }
  if (wire::is_send(op)) return std::string("SEND") + position_name(op);
  if (wire::is_write(op)) return std::string("RDMA WRITE") + position_name(op);
  if (wire::is_read_response(op)) return std::string("READ response") + position_name(op);
  if (op == wire::Opcode::kRcReadRequest) return "READ request";
  if (op == wire::Opcode::kRcAcknowledge) return ack_name(packet->aeth);
  return "packet";
}

}  // namespace verbena::fabric
