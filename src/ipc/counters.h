#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace verbena::ipc {

// Holds the name and the value of a counter.
struct NamedCount {
  std::string name{};
  std::uint64_t value = 0;
  void fields(auto& a) { a(name, value); }
};

// Converts words to the name of a counter: "cm_ignored wrong QPN" becomes cm_ignored_wrong_qpn.
// The name has only the characters a-z, 0-9 and _, so that scripts can use it.
std::string counter_name(std::string_view words);

}  // namespace verbena::ipc
