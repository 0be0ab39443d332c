#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "rdmacm/rules.h"
#include "rdmacm/types.h"

namespace verbena::rdmacm {

// Copies the private data of a message into `param`, which has space for that of every message.
inline void set_private_data(ConnParam& param, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, param.private_data.begin());
  param.private_data_bytes = static_cast<std::uint8_t>(bytes.size());
}

// Returns the private data of a program.  kInvalidArgument: it is larger than `bytes_max`, the
// space in the message.
inline Result<std::span<const std::byte>> private_data(const ConnParam& param,
                                                       std::size_t bytes_max) {
  VB_TRY_VOID(check_private_data(param.private_data_bytes, bytes_max));
  return std::span<const std::byte>(param.private_data).first(param.private_data_bytes);
}

}  // namespace verbena::rdmacm
