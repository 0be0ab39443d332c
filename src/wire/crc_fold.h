#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// The long part of a CRC-32 by carry-less multiplication, where the processor has it: 16 bytes for
// each two multiplications, several times as fast as tables.
namespace verbena::wire {

inline constexpr std::size_t kFoldBytesMin = 64;
inline constexpr std::size_t kFoldStep = 16;

// This processor can; asked once, for it never changes.
bool can_fold();

// The 16 bytes that lead from register 0 to where `bytes` would have led from `reg` (wire/icrc.cc).
// REQUIRES: can_fold(), at least kFoldBytesMin bytes, a multiple of kFoldStep.
std::array<std::byte, kFoldStep> fold(std::uint32_t reg, std::span<const std::byte> bytes);

}  // namespace verbena::wire
