#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace verbena::ipc {

struct NamedCount {
  std::string name{};
  std::uint64_t value = 0;
  void fields(auto& a) { a(name, value); }
};

// Turns words into a counter's name, which scripts can use: "cm_ignored wrong QPN" becomes
// cm_ignored_wrong_qpn.  The name has only the characters a-z, 0-9 and _.
std::string counter_name(std::string_view words);

}  // namespace verbena::ipc
