#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/error.h"

// Explains an error to a program that asks for more than the device has.  The text names the call,
// the value, and the limit as ibv_query_device() calls it.
namespace verbena::client {

struct Size {
  const char* name = "";  // as the program calls it
  std::uint64_t value = 0;
  const char* limit_name = "";
  std::uint64_t limit = 0;
  std::uint64_t at_least = 0;
};

// Returns the error with a new context: a text about the first size that is out of bounds.  If no
// size is, returns the error unchanged.  The text is valid until the same thread calls this
// function again.
Error name_size(const Error& error, const char* call, std::initializer_list<Size> sizes);

}  // namespace verbena::client
