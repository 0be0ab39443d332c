#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::stream {

// Returns the byte that tests send at an offset of a stream.  Neighbouring bytes differ, so that a
// test detects lost, repeated or moved bytes.
inline std::byte byte_at(std::uint64_t offset) { return static_cast<std::byte>(offset * 151 >> 3); }

}  // namespace verbena::stream
