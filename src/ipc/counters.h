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

// Words as the name of a counter, which is for scripts: "cm_ignored wrong QPN" is
// cm_ignored_wrong_qpn.  a-z, 0-9 and _ alone.
std::string counter_name(std::string_view words);

}  // namespace verbena::ipc
