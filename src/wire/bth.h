#pragma once

#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "base/time.h"
#include "wire/layout.h"

// Defines the transport headers (vol1 9.2 to 9.4; XRC: annex A14).  wire/headers.h determines which
// of them a packet has.
namespace verbena::wire {

// Names the BTH opcodes (vol1 9.2.1).  The upper three bits select the transport service, the lower
// five the operation.
// clang-format off
enum class Opcode : std::uint8_t {
  kRcSendFirst          = 0x00,
  kRcSendMiddle         = 0x01,
  kRcSendLast           = 0x02,
  kRcSendLastImm        = 0x03,
  kRcSendOnly           = 0x04,
  kRcSendOnlyImm        = 0x05,
  kRcWriteFirst         = 0x06,
  kRcWriteMiddle        = 0x07,
  kRcWriteLast          = 0x08,
  kRcWriteLastImm       = 0x09,
  kRcWriteOnly          = 0x0a,
  kRcWriteOnlyImm       = 0x0b,
  kRcReadRequest        = 0x0c,
  kRcReadResponseFirst  = 0x0d,
  kRcReadResponseMiddle = 0x0e,
  kRcReadResponseLast   = 0x0f,
  kRcReadResponseOnly   = 0x10,
  kRcAcknowledge        = 0x11,
  kRcAtomicAcknowledge  = 0x12,
  kRcCompareSwap        = 0x13,
  kRcFetchAdd           = 0x14,
  kRcSendLastInvalidate = 0x16,
  kRcSendOnlyInvalidate = 0x17,
  kRcAtomicWrite        = 0x1d,  // new in release 1.5 of the specification

  kUcSendFirst          = 0x20,
  kUcSendMiddle         = 0x21,
  kUcSendLast           = 0x22,
  kUcSendLastImm        = 0x23,
  kUcSendOnly           = 0x24,
  kUcSendOnlyImm        = 0x25,
  kUcWriteFirst         = 0x26,
  kUcWriteMiddle        = 0x27,
  kUcWriteLast          = 0x28,
  kUcWriteLastImm       = 0x29,
  kUcWriteOnly          = 0x2a,
  kUcWriteOnlyImm       = 0x2b,

  kUdSendOnly           = 0x64,
  kUdSendOnlyImm        = 0x65,

  kXrcSendFirst          = 0xa0,
  kXrcSendMiddle         = 0xa1,
  kXrcSendLast           = 0xa2,
  kXrcSendLastImm        = 0xa3,
  kXrcSendOnly           = 0xa4,
  kXrcSendOnlyImm        = 0xa5,
  kXrcWriteFirst         = 0xa6,
  kXrcWriteMiddle        = 0xa7,
  kXrcWriteLast          = 0xa8,
  kXrcWriteLastImm       = 0xa9,
  kXrcWriteOnly          = 0xaa,
  kXrcWriteOnlyImm       = 0xab,
  kXrcReadRequest        = 0xac,
  kXrcReadResponseFirst  = 0xad,
  kXrcReadResponseMiddle = 0xae,
  kXrcReadResponseLast   = 0xaf,
  kXrcReadResponseOnly   = 0xb0,
  kXrcAcknowledge        = 0xb1,
  kXrcAtomicAcknowledge  = 0xb2,
  kXrcCompareSwap        = 0xb3,
  kXrcFetchAdd           = 0xb4,
  kXrcSendLastInvalidate = 0xb6,
  kXrcSendOnlyInvalidate = 0xb7,
};

inline constexpr Qpn kMulticastQpn{0xffffff};
inline constexpr Pkey kDefaultPkey{0xffff};

// Returns true if two ends with these P_Keys may communicate.  Both ends must be in the same
// partition, and at least one must be a full member (vol1 10.9.3).  The top bit of a P_Key marks a
// full member.  The other 15 bits are the number of the partition, which must not be 0.
constexpr bool pkeys_match(Pkey a, Pkey b) {
  constexpr std::uint16_t kFullMember = 0x8000, kPartition = 0x7fff;
  const bool is_same_partition =
      ((a.value ^ b.value) & kPartition) == 0 && (a.value & kPartition) != 0;
  return is_same_partition && ((a.value | b.value) & kFullMember) != 0;
}

// Describes the base transport header (vol1 9.2).
struct Bth {
  Opcode opcode{};
  bool solicited_event{};
  bool migration_request{};
  std::uint8_t pad_count{};          // 0..3
  std::uint8_t transport_version{};  // always 0
  Pkey pkey{kDefaultPkey};
  bool fecn{};
  bool becn{};
  Qpn destination_qpn{};
  bool acknowledge_request{};
  Psn psn{};

  friend bool operator==(const Bth&, const Bth&) = default;

  static consteval auto layout() {
    return wire::layout<12>(
        field<&Bth::opcode>             ({.byte = 0,            .bits = 8}),
        field<&Bth::solicited_event>    ({.byte = 1, .bit = 0,  .bits = 1}),
        field<&Bth::migration_request>  ({.byte = 1, .bit = 1,  .bits = 1}),
        field<&Bth::pad_count>          ({.byte = 1, .bit = 2,  .bits = 2}),
        field<&Bth::transport_version>  ({.byte = 1, .bit = 4,  .bits = 4}),
        field<&Bth::pkey>               ({.byte = 2,            .bits = 16}),
        field<&Bth::fecn>               ({.byte = 4, .bit = 0,  .bits = 1}),
        field<&Bth::becn>               ({.byte = 4, .bit = 1,  .bits = 1}),
        field<&Bth::destination_qpn>    ({.byte = 5,            .bits = 24}),
        field<&Bth::acknowledge_request>({.byte = 8, .bit = 0,  .bits = 1}),
        field<&Bth::psn>                ({.byte = 9,            .bits = 24}));
  }
};

// Describes the datagram extended header of UD (vol1 9.3.2).
struct Deth {
  Qkey qkey{};
  Qpn source_qpn{};

  friend bool operator==(const Deth&, const Deth&) = default;

  static consteval auto layout() {
    return wire::layout<8>(
        field<&Deth::qkey>      ({.byte = 0, .bits = 32}),
        field<&Deth::source_qpn>({.byte = 5, .bits = 24}));
  }
};

// Describes the RDMA extended header (vol1 9.3.3) of READ requests, of ATOMIC WRITEs, and of the
// first or only packet of a WRITE.
struct Reth {
  std::uint64_t virtual_address{};
  std::uint32_t r_key{};
  std::uint32_t dma_length_bytes{};

  friend bool operator==(const Reth&, const Reth&) = default;

  static consteval auto layout() {
    return wire::layout<16>(
        field<&Reth::virtual_address> ({.byte = 0,  .bits = 64}),
        field<&Reth::r_key>           ({.byte = 8,  .bits = 32}),
        field<&Reth::dma_length_bytes>({.byte = 12, .bits = 32}));
  }
};

// Describes the atomic extended header (vol1 9.3.4).  FetchAdd puts its addend into swap_or_add,
// where CmpSwap puts the new value.
struct AtomicEth {
  std::uint64_t virtual_address{};
  std::uint32_t r_key{};
  std::uint64_t swap_or_add{};
  std::uint64_t compare{};

  friend bool operator==(const AtomicEth&, const AtomicEth&) = default;

  static consteval auto layout() {
    return wire::layout<28>(
        field<&AtomicEth::virtual_address>({.byte = 0,  .bits = 64}),
        field<&AtomicEth::r_key>          ({.byte = 8,  .bits = 32}),
        field<&AtomicEth::swap_or_add>    ({.byte = 12, .bits = 64}),
        field<&AtomicEth::compare>        ({.byte = 20, .bits = 64}));
  }
};

// Describes the ACK extended header (vol1 9.3.5).  kind() and code() interpret the syndrome.
struct Aeth {
  std::uint8_t syndrome{};
  std::uint32_t msn{};  // message sequence number, 24 bits

  friend bool operator==(const Aeth&, const Aeth&) = default;

  static consteval auto layout() {
    return wire::layout<4>(
        field<&Aeth::syndrome>({.byte = 0, .bits = 8}),
        field<&Aeth::msn>     ({.byte = 1, .bits = 24}));
  }
};

// Describes the atomic ACK extended header (vol1 9.3.5.3), which returns the value that the memory
// had before the operation.
struct AtomicAckEth {
  std::uint64_t original{};

  friend bool operator==(const AtomicAckEth&, const AtomicAckEth&) = default;

  static consteval auto layout() {
    return wire::layout<8>(field<&AtomicAckEth::original>({.byte = 0, .bits = 64}));
  }
};

// Holds immediate data (vol1 9.3.6) in host order.  C programs get the data in network order.
struct ImmDt {
  std::uint32_t immediate{};

  friend bool operator==(const ImmDt&, const ImmDt&) = default;

  static consteval auto layout() {
    return wire::layout<4>(field<&ImmDt::immediate>({.byte = 0, .bits = 32}));
  }
};

// Describes the invalidate extended header (vol1 9.3.7).
struct Ieth {
  std::uint32_t r_key{};

  friend bool operator==(const Ieth&, const Ieth&) = default;

  static consteval auto layout() {
    return wire::layout<4>(field<&Ieth::r_key>({.byte = 0, .bits = 32}));
  }
};

// Describes the XRC extended header (annex A14), which contains the number of the receiver's SRQ.
struct XrcEth {
  Qpn srq{};

  friend bool operator==(const XrcEth&, const XrcEth&) = default;

  static consteval auto layout() {
    return wire::layout<4>(field<&XrcEth::srq>({.byte = 1, .bits = 24}));
  }
};
// clang-format on

// Names the kinds of an AETH (vol1 9.7.5.2.2 to 9.7.5.2.4).  kind() reads the kind from the
// upper three bits of the syndrome.
enum class AethKind : std::uint8_t { kAck, kRnrNak, kNak, kReserved };

// Names the lower five bits of a NAK's syndrome (vol1 9.7.5.2.8).
enum class NakCode : std::uint8_t {
  kPsnSequenceError = 0,
  kInvalidRequest = 1,
  kRemoteAccessError = 2,
  kRemoteOperationalError = 3,
  kInvalidRdRequest = 4,
};

inline constexpr std::uint8_t kCreditsUnlimited = 31;  // the credit code for "no flow control"

constexpr AethKind kind(const Aeth& aeth) {
  switch (aeth.syndrome >> 5) {
    case 0: return AethKind::kAck;
    case 1: return AethKind::kRnrNak;
    case 3: return AethKind::kNak;
    default: return AethKind::kReserved;
  }
}

// Returns the lower five bits of the syndrome.  They are the credit code of an ACK, the timer code
// of an RNR NAK or the NakCode of a NAK.
constexpr std::uint8_t code(const Aeth& aeth) { return aeth.syndrome & 31; }
constexpr NakCode nak_code(const Aeth& aeth) { return static_cast<NakCode>(code(aeth)); }

constexpr Aeth ack(std::uint32_t msn, std::uint8_t credit_code = kCreditsUnlimited) {
  return {.syndrome = static_cast<std::uint8_t>(credit_code & 31), .msn = msn & kMask24};
}
constexpr Aeth rnr_nak(std::uint32_t msn, std::uint8_t timer_code) {
  return {.syndrome = static_cast<std::uint8_t>(0x20 | (timer_code & 31)), .msn = msn & kMask24};
}
constexpr Aeth nak(std::uint32_t msn, NakCode reason) {
  return {.syndrome = static_cast<std::uint8_t>(0x60 | (static_cast<unsigned>(reason) & 31)),
          .msn = msn & kMask24};
}

// Returns the number of receives that a credit code of an ACK grants (vol1 table 47), or nullopt if
// the code sets no limit.
std::optional<std::uint32_t> credits(std::uint8_t credit_code);
// Returns the largest credit code that grants at most `receives` receives.
std::uint8_t credit_code(std::uint32_t receives);

// Returns the time that a sender waits after an RNR NAK (vol1 table 45): from 10 us (code 1) to
// 655.36 ms (code 0).
Duration rnr_timer(std::uint8_t timer_code);

}  // namespace verbena::wire
