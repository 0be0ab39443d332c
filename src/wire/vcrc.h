#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// Computes the variant CRC at the end of a packet on an InfiniBand link (vol1 7.8.2).  The VCRC
// covers all bytes from the LRH to the ICRC, even those that change on the way, so each hop
// computes it again.  It is a CRC-16 with the polynomial x^16 + x^12 + x^3 + x + 1 (0x100b).  The
// register starts with ones, takes the least significant bit of each byte first, and is
// complemented at the end.
namespace verbena::wire {

inline constexpr std::size_t kVcrcBytes = 2;

std::uint16_t vcrc(std::span<const std::byte> lrh_to_icrc);

// Writes the VCRC to the first two bytes of `out`, the least significant byte first.
void store_vcrc(std::span<std::byte> out, std::uint16_t vcrc);

}  // namespace verbena::wire
