#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/strong.h"
#include "wire/ip.h"

// Computes the invariant CRC of RoCEv2 (annex A17.3.3, vol1 7.8.1).  It is a CRC-32 over eight
// bytes 0xff, the IP and UDP headers, and the bytes from BTH to pad.  Fields that routers may
// change are replaced by ones.  The ICRC follows the pad, least significant byte first.
namespace verbena::wire {

inline constexpr std::size_t kIcrcBytes = 4;

// Holds the IP and UDP fields that the ICRC covers and that are not in the transport packet.  Both
// GIDs have the same family.  IPv4 packets must be as sockets and Linux's rxe driver send them:
// with DF set, without options, and not fragmented.
struct IcrcInputs {
  Gid source{};
  Gid destination{};
  std::uint16_t source_port{};
  std::uint16_t destination_port{kRoceUdpPort};
  std::uint16_t identification{};  // for IPv4 only

  friend bool operator==(const IcrcInputs&, const IcrcInputs&) = default;
};

// Computes the ICRC of a packet.  REQUIRES: `bth_to_pad` has at least the 12 bytes of a BTH.
std::uint32_t icrc(const IcrcInputs& inputs, std::span<const std::byte> bth_to_pad);

// Checks an ICRC without knowing the IPv4 identification, which a UDP socket does not report.  A
// CRC is linear, so each identification changes the ICRC by a known value.  Returns the
// identification for which the ICRC matches.  If other bits are wrong, returns nullopt, or with a
// probability of 2^-16 a wrong identification.  For IPv6 packets, returns 0 if the ICRC matches,
// else nullopt.  The function costs one icrc(), and one multiplication of polynomials over GF(2) if
// inputs.identification is not the right one.  REQUIRES: `bth_to_pad` has at least 12 bytes.
std::optional<std::uint16_t> find_identification(const IcrcInputs& inputs,
                                                 std::span<const std::byte> bth_to_pad,
                                                 std::uint32_t received_icrc);

// Holds a UDP payload, split into the transport packet and the ICRC in its last four bytes.
struct IcrcSplit {
  std::span<const std::byte> bth_to_pad{};
  std::uint32_t icrc{};
};

// Splits a UDP payload.  Fails with Drop::kTooShort if there are fewer bytes than a BTH and an
// ICRC.
Result<IcrcSplit> split_icrc(std::span<const std::byte> udp_payload);

// Writes the ICRC to the first four bytes of `out`.
void store_icrc(std::span<std::byte> out, std::uint32_t icrc);

// Returns the inputs of the ICRC from the headers of a frame.
constexpr IcrcInputs icrc_inputs(const FrameHeaders& headers) {
  return {.source = headers.source,
          .destination = headers.destination,
          .source_port = headers.source_port,
          .destination_port = headers.destination_port,
          .identification = headers.identification};
}

// Computes the same CRC-32 as zlib's crc32().  The caller starts with 0, and passes the parts of
// the data in order.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes);

}  // namespace verbena::wire
