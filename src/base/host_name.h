#pragma once

#include <cstddef>
#include <string_view>

namespace verbena {

// Limits the name of a fabric, or of one of its hosts, because both are parts of a socket's name.
inline constexpr std::size_t kHostNameBytesMax = 32;

// States the rule of is_host_name() for messages.
inline constexpr const char* kHostNameRule =
    "1 to 32 letters, digits, '_' or '-', and no '-' first";

// Returns true if commands can use the text as the name of a fabric, a host, a network or a device:
// it has 1 to kHostNameBytesMax letters, digits, '_' and '-', and does not begin with '-', because
// commands would read such a name as an option.
constexpr bool is_host_name(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !name.empty() && name.size() <= kHostNameBytesMax && !name.starts_with('-') &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

}  // namespace verbena
