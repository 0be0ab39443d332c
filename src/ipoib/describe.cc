#include "ipoib/describe.h"

#include <fmt/format.h>

#include "wire/address_text.h"

namespace verbena::ipoib {

std::string describe(const Row& row) {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(row.age).count();
  std::string line =
      fmt::format("{}  {}  {} s", wire::address_text(row.ip), to_string(row.state), age);
  if (row.state != State::kIncomplete) {
    line += fmt::format("  {}  QPN {:#08x}", wire::address_text(row.neighbour.gid),
                        row.neighbour.qpn.value);
  } else {
    line += fmt::format("  {} wait", row.askers);
  }
  if (row.tries != 0) {
    line += fmt::format(", {} {} without an answer", row.tries,
                        row.tries == 1 ? "request" : "requests");
  }
  return line;
}

}  // namespace verbena::ipoib
