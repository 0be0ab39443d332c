#include "ipc/counters.h"

namespace verbena::ipc {

std::string counter_name(std::string_view words) {
  std::string name;
  for (const char c : words) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (upper) {
      name += static_cast<char>(c - 'A' + 'a');
    } else if (allowed) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  return name;
}

}  // namespace verbena::ipc
