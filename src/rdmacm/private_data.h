#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "rdmacm/types.h"

namespace verbena::rdmacm {

// `bytes` are those of a message, which ConnParam has room for.
inline void set_private_data(ConnParam& param, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, param.private_data.begin());
  param.private_data_bytes = static_cast<std::uint8_t>(bytes.size());
}

// What a program gave, if a message with `bytes_max` holds it.
inline Result<std::span<const std::byte>> private_data(const ConnParam& param,
                                                       std::size_t bytes_max) {
  if (param.private_data_bytes > bytes_max) {
    return fail(Errc::kInvalidArgument, "more private data than the message holds");
  }
  return std::span<const std::byte>(param.private_data).first(param.private_data_bytes);
}

}  // namespace verbena::rdmacm
