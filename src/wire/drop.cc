#include "wire/drop.h"

namespace verbena::wire {

const char* to_string(Drop reason) {
  switch (reason) {
    case Drop::kNone: return "none";
    case Drop::kTooShort: return "too short";
    case Drop::kNotWords: return "not a multiple of four bytes";
    case Drop::kUnknownOpcode: return "unknown opcode";
    case Drop::kTransportVersion: return "bad transport version";
    case Drop::kPadTooLong: return "more pad than payload";
    case Drop::kPayloadNotAllowed: return "payload where none is allowed";
    case Drop::kIcrc: return "bad ICRC";
    case Drop::kNotIp: return "not IP";
    case Drop::kIpOptions: return "IP options";
    case Drop::kIpChecksum: return "bad IP checksum";
    case Drop::kFragment: return "fragment";
    case Drop::kNotUdp: return "not UDP";
    case Drop::kLength: return "bad length";
    case Drop::kUnknownAttribute: return "unknown attribute";
    case Drop::kNotInfiniband: return "not InfiniBand";
    case Drop::kCount: break;
  }
  return "unknown";
}

}  // namespace verbena::wire
