#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/error.h"

// Explains an error to a program that asks for a size that the device does not support.  The text
// contains the call, the value and the limit.  A maximum has a name, usually that of its member of
// ibv_device_attr.
namespace verbena::client {

struct BoundedSize {
  const char* name = "";  // the name of the member that the program has set
  std::uint64_t value = 0;
  const char* limit_name = "";  // the name of the maximum
  std::uint64_t maximum = 0;
  std::uint64_t minimum = 0;
};

// Returns the error with a new context: a text about the first size that is out of bounds.  If all
// sizes are within bounds, or if the error is not kInvalidArgument, returns the error unchanged.
// The text is valid until the same thread calls this function again.
Error explain_size_error(const Error& error, const char* call,
                         std::initializer_list<BoundedSize> sizes);

}  // namespace verbena::client
