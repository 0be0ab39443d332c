#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/strong.h"
#include "wire/ip.h"

// The invariant CRC of RoCEv2 (annex A17.3.3, vol1 7.8.1): a CRC-32 over eight bytes of ones, the
// IP and UDP headers, BTH and everything up to the pad, with what routers may change set to ones.
// It stands behind the pad, least significant byte first.
namespace verbena::wire {

inline constexpr std::size_t kIcrcBytes = 4;

// The fields of IP and UDP that the sum covers and that the transport packet does not hold.  Both
// GIDs are of one family.  IPv4 is taken to go out as our sockets and rxe send it: no options, DF,
// no fragment.
struct IcrcInputs {
  Gid source{};
  Gid destination{};
  std::uint16_t source_port{};
  std::uint16_t destination_port{kRoceUdpPort};
  std::uint16_t identification{};  // IPv4 alone

  friend bool operator==(const IcrcInputs&, const IcrcInputs&) = default;
};

// The sum of a packet of at least a BTH.  REQUIRES: 12 bytes.
std::uint32_t icrc(const IcrcInputs& inputs, std::span<const std::byte> bth_to_pad);

// Checks a sum whose IPv4 identification is not known, as a UDP socket does not tell it: a CRC is
// linear, so the difference to the sum with inputs.identification must be one that those 16 bits
// can make.  The identification that explains the sum (inputs.identification itself if there is no
// difference), or nothing: then other bits are wrong, but for a chance of 2^-16.  Over IPv6 the sum
// must match, and 0 is returned.  Costs one icrc() and one multiplication in GF(2).
// REQUIRES: 12 bytes.
std::optional<std::uint16_t> find_identification(const IcrcInputs& inputs,
                                                 std::span<const std::byte> bth_to_pad,
                                                 std::uint32_t received_icrc);

// The last four bytes of a UDP payload and what is before them.
struct IcrcSplit {
  std::span<const std::byte> bth_to_pad{};
  std::uint32_t icrc{};
};

// Fails with Drop::kTooShort for less than a BTH and a sum.
Result<IcrcSplit> split_icrc(std::span<const std::byte> udp_payload);

// Writes the sum to the first four bytes of `out`.
void store_icrc(std::span<std::byte> out, std::uint32_t icrc);

// What the sum needs of a frame read from a capture.
constexpr IcrcInputs icrc_inputs(const FrameHeaders& headers) {
  return {.source = headers.source,
          .destination = headers.destination,
          .source_port = headers.source_port,
          .destination_port = headers.destination_port,
          .identification = headers.identification};
}

// The CRC itself, as zlib's crc32(): start with 0, feed pieces in order.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes);

}  // namespace verbena::wire
