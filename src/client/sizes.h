#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/error.h"

// Words for a program that wants more than the device has: the call, the value that it has given,
// and the limit under the name that ibv_query_device() has for it.
namespace verbena::client {

struct Size {
  const char* name = "";  // as the program calls it
  std::uint64_t value = 0;
  const char* limit_name = "";
  std::uint64_t limit = 0;
  std::uint64_t at_least = 0;
};

// The error, with the first of the sizes that is out of bounds as its context; as it was if none
// is. The words are the calling thread's until it calls this again.
Error name_size(const Error& error, const char* call, std::initializer_list<Size> sizes);

}  // namespace verbena::client
