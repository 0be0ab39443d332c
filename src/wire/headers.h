#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/error.h"
#include "wire/bth.h"
#include "wire/drop.h"

// Parses one transport packet, from BTH to pad, and writes its headers.  The opcode determines the
// headers (vol1 9.2.1 table 38, annex A14).  This is the data path: no function allocates, and the
// payload is a view.
namespace verbena::wire {

// Names the upper three bits of an opcode.
enum class Transport : std::uint8_t { kRc = 0, kUc = 1, kRd = 2, kUd = 3, kXrc = 5 };

// Names the lower five bits of an opcode, which have the same meaning for every transport.
enum class Operation : std::uint8_t {
  kSendFirst = 0x00,
  kSendMiddle = 0x01,
  kSendLast = 0x02,
  kSendLastImm = 0x03,
  kSendOnly = 0x04,
  kSendOnlyImm = 0x05,
  kWriteFirst = 0x06,
  kWriteMiddle = 0x07,
  kWriteLast = 0x08,
  kWriteLastImm = 0x09,
  kWriteOnly = 0x0a,
  kWriteOnlyImm = 0x0b,
  kReadRequest = 0x0c,
  kReadResponseFirst = 0x0d,
  kReadResponseMiddle = 0x0e,
  kReadResponseLast = 0x0f,
  kReadResponseOnly = 0x10,
  kAcknowledge = 0x11,
  kAtomicAcknowledge = 0x12,
  kCompareSwap = 0x13,
  kFetchAdd = 0x14,
  kSendLastInvalidate = 0x16,
  kSendOnlyInvalidate = 0x17,
  kAtomicWrite = 0x1d,
};

constexpr Transport transport_of(Opcode op) {
  return static_cast<Transport>(std::to_underlying(op) >> 5);
}
constexpr Operation operation_of(Opcode op) {
  return static_cast<Operation>(std::to_underlying(op) & 31);
}
// Returns the opcode of an operation.  If the transport does not have the operation, is_known()
// returns false for this opcode.
constexpr Opcode opcode_of(Transport transport, Operation operation) {
  return static_cast<Opcode>(std::to_underlying(transport) << 5 | std::to_underlying(operation));
}

// Stores the properties of every opcode in a table of bits, so that the data path needs a single
// load.
namespace properties {
inline constexpr std::uint32_t kDeth = 1u << 0;
inline constexpr std::uint32_t kReth = 1u << 1;
inline constexpr std::uint32_t kAtomicEth = 1u << 2;
inline constexpr std::uint32_t kAeth = 1u << 3;
inline constexpr std::uint32_t kAtomicAckEth = 1u << 4;
inline constexpr std::uint32_t kImmDt = 1u << 5;
inline constexpr std::uint32_t kIeth = 1u << 6;
inline constexpr std::uint32_t kXrcEth = 1u << 7;
inline constexpr std::uint32_t kPayload = 1u << 8;
inline constexpr std::uint32_t kRequest = 1u << 9;
inline constexpr std::uint32_t kFirst = 1u << 10;
inline constexpr std::uint32_t kMiddle = 1u << 11;
inline constexpr std::uint32_t kLast = 1u << 12;
inline constexpr std::uint32_t kOnly = 1u << 13;
inline constexpr std::uint32_t kSend = 1u << 14;
inline constexpr std::uint32_t kWrite = 1u << 15;
inline constexpr std::uint32_t kReadResponse = 1u << 16;
inline constexpr std::uint32_t kKnown = 1u << 17;

struct Entry {
  std::uint32_t bits = 0;  // 0 for an unknown opcode
  std::uint8_t header_bytes = 0;
};

// Returns the properties that an operation has in every transport, or 0 for an unknown operation.
constexpr std::uint32_t bits_of_operation(unsigned operation) {
  using enum Operation;
  switch (static_cast<Operation>(operation)) {
    case kSendFirst: return kKnown | kRequest | kSend | kFirst | kPayload;
    case kSendMiddle: return kKnown | kRequest | kSend | kMiddle | kPayload;
    case kSendLast: return kKnown | kRequest | kSend | kLast | kPayload;
    case kSendLastImm: return kKnown | kRequest | kSend | kLast | kPayload | kImmDt;
    case kSendOnly: return kKnown | kRequest | kSend | kOnly | kPayload;
    case kSendOnlyImm: return kKnown | kRequest | kSend | kOnly | kPayload | kImmDt;
    case kWriteFirst: return kKnown | kRequest | kWrite | kFirst | kPayload | kReth;
    case kWriteMiddle: return kKnown | kRequest | kWrite | kMiddle | kPayload;
    case kWriteLast: return kKnown | kRequest | kWrite | kLast | kPayload;
    case kWriteLastImm: return kKnown | kRequest | kWrite | kLast | kPayload | kImmDt;
    case kWriteOnly: return kKnown | kRequest | kWrite | kOnly | kPayload | kReth;
    case kWriteOnlyImm: return kKnown | kRequest | kWrite | kOnly | kPayload | kReth | kImmDt;
    case kReadRequest: return kKnown | kRequest | kOnly | kReth;
    case kReadResponseFirst: return kKnown | kReadResponse | kFirst | kPayload | kAeth;
    case kReadResponseMiddle: return kKnown | kReadResponse | kMiddle | kPayload;
    case kReadResponseLast: return kKnown | kReadResponse | kLast | kPayload | kAeth;
    case kReadResponseOnly: return kKnown | kReadResponse | kOnly | kPayload | kAeth;
    case kAcknowledge: return kKnown | kOnly | kAeth;
    case kAtomicAcknowledge: return kKnown | kOnly | kAeth | kAtomicAckEth;
    case kCompareSwap:
    case kFetchAdd: return kKnown | kRequest | kOnly | kAtomicEth;
    case kSendLastInvalidate: return kKnown | kRequest | kSend | kLast | kPayload | kIeth;
    case kSendOnlyInvalidate: return kKnown | kRequest | kSend | kOnly | kPayload | kIeth;
    case kAtomicWrite: return kKnown | kRequest | kOnly | kPayload | kReth;
  }
  return 0;
}

// Returns the properties of an opcode, or 0 for an unknown opcode.
constexpr std::uint32_t bits_of_opcode(unsigned opcode) {
  const std::uint32_t bits = bits_of_operation(opcode & 31);
  switch (opcode >> 5) {
    case std::to_underlying(Transport::kRc): return bits;
    case std::to_underlying(Transport::kUc):  // UC has only SEND and WRITE
      return (opcode & 31) <= std::to_underlying(Operation::kWriteOnlyImm) ? bits : 0;
    case std::to_underlying(Transport::kUd):  // UD has only SEND in one packet
      return (bits & kSend) && (bits & kOnly) && !(bits & kIeth) ? bits | kDeth : 0;
    case std::to_underlying(Transport::kXrc):  // XRC has no ATOMIC WRITE
      if ((opcode & 31) == std::to_underlying(Operation::kAtomicWrite)) return 0;
      return bits & kRequest ? bits | kXrcEth : bits;
    default: return 0;
  }
}

constexpr std::size_t header_bytes(std::uint32_t bits) {
  if (bits == 0) return 0;
  const auto part = [bits](std::uint32_t bit, std::size_t bytes) { return bits & bit ? bytes : 0; };
  return kSize<Bth> + part(kXrcEth, kSize<XrcEth>) + part(kDeth, kSize<Deth>) +
         part(kReth, kSize<Reth>) + part(kAtomicEth, kSize<AtomicEth>) + part(kAeth, kSize<Aeth>) +
         part(kAtomicAckEth, kSize<AtomicAckEth>) + part(kImmDt, kSize<ImmDt>) +
         part(kIeth, kSize<Ieth>);
}

inline constexpr auto kPropertiesOfOpcodes = [] {
  std::array<Entry, 256> table{};
  for (unsigned op = 0; op < 256; ++op) {
    const std::uint32_t bits = bits_of_opcode(op);
    table[op] = {bits, static_cast<std::uint8_t>(header_bytes(bits))};
  }
  return table;
}();

constexpr Entry of(Opcode op) { return kPropertiesOfOpcodes[std::to_underlying(op)]; }
// Returns true if the opcode has at least one of these properties.
constexpr bool has(Opcode op, std::uint32_t bits) { return (of(op).bits & bits) != 0; }
}  // namespace properties

// Returns the total size of BTH and extension headers, or 0 for an unknown opcode.
constexpr std::size_t header_bytes(Opcode op) { return properties::of(op).header_bytes; }
inline constexpr std::size_t kHeaderBytesMax = kSize<Bth> + kSize<XrcEth> + kSize<AtomicEth>;

constexpr bool is_known(Opcode op) { return properties::has(op, properties::kKnown); }
// Returns true for packets from requester to responder.  All UC and UD packets are requests.
constexpr bool is_request(Opcode op) { return properties::has(op, properties::kRequest); }
// Returns true for packets from responder to requester: READ responses and acknowledgements.
constexpr bool is_response(Opcode op) { return is_known(op) && !is_request(op); }

// The next four functions describe the position of a packet in its message.  Exactly one of them
// returns true for a known opcode.  READ requests, atomics and acknowledgements are always single
// packets, and count as "only".
constexpr bool is_first(Opcode op) { return properties::has(op, properties::kFirst); }
constexpr bool is_middle(Opcode op) { return properties::has(op, properties::kMiddle); }
constexpr bool is_last(Opcode op) { return properties::has(op, properties::kLast); }
constexpr bool is_only(Opcode op) { return properties::has(op, properties::kOnly); }
constexpr bool starts_message(Opcode op) {
  return properties::has(op, properties::kFirst | properties::kOnly);
}
constexpr bool ends_message(Opcode op) {
  return properties::has(op, properties::kLast | properties::kOnly);
}

constexpr bool is_send(Opcode op) { return properties::has(op, properties::kSend); }
// Returns true for RDMA WRITE, but not for ATOMIC WRITE.
constexpr bool is_write(Opcode op) { return properties::has(op, properties::kWrite); }
constexpr bool is_read_response(Opcode op) {
  return properties::has(op, properties::kReadResponse);
}
// Returns true for CompareSwap and FetchAdd, but not for ATOMIC WRITE.
constexpr bool is_atomic(Opcode op) { return properties::has(op, properties::kAtomicEth); }

// Returns true if packets with this opcode may have a payload.
constexpr bool has_payload(Opcode op) { return properties::has(op, properties::kPayload); }
constexpr bool carries_immediate(Opcode op) { return properties::has(op, properties::kImmDt); }
constexpr bool carries_invalidate(Opcode op) { return properties::has(op, properties::kIeth); }
constexpr bool carries_deth(Opcode op) { return properties::has(op, properties::kDeth); }
constexpr bool carries_reth(Opcode op) { return properties::has(op, properties::kReth); }
constexpr bool carries_aeth(Opcode op) { return properties::has(op, properties::kAeth); }
constexpr bool carries_atomic(Opcode op) { return properties::has(op, properties::kAtomicEth); }
constexpr bool carries_atomic_ack(Opcode op) {
  return properties::has(op, properties::kAtomicAckEth);
}
constexpr bool carries_xrc(Opcode op) { return properties::has(op, properties::kXrcEth); }

// Holds a packet with its headers in host order.  bth.opcode determines which headers are valid.
// parse_transport() sets the other headers to zero, and write_headers() ignores them.
struct TransportPacket {
  Bth bth{};
  XrcEth xrc{};
  Deth deth{};
  Reth reth{};
  AtomicEth atomic{};
  AtomicAckEth atomic_ack{};
  Aeth aeth{};
  std::uint32_t immediate{};
  std::uint32_t invalidate_r_key{};
  std::span<const std::byte> payload{};  // excludes the pad
};

// Returns the number of pad bytes after a payload, for Bth::pad_count.
constexpr std::uint8_t pad_count(std::size_t payload_bytes) {
  return static_cast<std::uint8_t>(-payload_bytes & 3);
}

// Parses the bytes from BTH to pad.  The caller has checked the ICRC and removed it.  Fails with
// kMalformed and a Drop.  The caller makes the two checks that need the QP: that the opcode has
// the transport of the QP, and that the payload of FIRST and MIDDLE packets has the size of the
// path MTU.
Result<TransportPacket> parse_transport(std::span<const std::byte> bth_to_pad);
// Parses bytes from BTH to pad that another process may change at the same time.  Reads the headers
// from `headers`, which is a copy of the first bytes.  Fails like parse_transport(bth_to_pad).
// REQUIRES: `headers` contains a copy of all bytes, or of at least kHeaderBytesMax bytes.
Result<TransportPacket> parse_transport(std::span<const std::byte> bth_to_pad,
                                        std::span<const std::byte> headers);

// Writes BTH and the opcode's extension headers; returns header_bytes(opcode).  Does not compute
// packet.bth.pad_count.  REQUIRES: the opcode is known, and the headers fit into `out`.
std::size_t write_headers(std::span<std::byte> out, const TransportPacket& packet);

}  // namespace verbena::wire
