#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// Computes most of a CRC-32 by carry-less multiplication, if the processor supports this.  Two
// multiplications for 16 bytes are several times as fast as lookup tables.
namespace verbena::wire {

inline constexpr std::size_t kFoldBytesMin = 32;
inline constexpr std::size_t kFoldStep = 16;

// Returns true if this processor supports fold().  The result is cached.
bool can_fold();

// Shortens the input of a CRC to 16 bytes.  Feeding these bytes to a CRC register of 0 gives the
// same result as feeding `bytes` to `reg` (feed() in wire/icrc.cc).  REQUIRES: can_fold(), and the
// number of bytes is a multiple of kFoldStep and at least kFoldBytesMin.
std::array<std::byte, kFoldStep> fold(std::uint32_t reg, std::span<const std::byte> bytes);

}  // namespace verbena::wire
