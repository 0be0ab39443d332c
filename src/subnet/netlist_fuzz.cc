// Parses any bytes as a netlist.  Checks that a parsed topology has no problem.  Also checks that
// the text of the topology is the same after it is written and parsed again.

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "subnet/netlist.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace verbena::subnet;
  const auto parsed = parse_netlist({reinterpret_cast<const char*>(data), size});
  if (!parsed) {
    VB_CHECK(parsed.error().line > 0 && parsed.error().column > 0);
    VB_CHECK(!parsed.error().reason.empty());
    return 0;
  }
  VB_CHECK(!find_problem(*parsed));
  const std::string text = write_netlist(*parsed);
  const auto parsed_again = parse_netlist(text);
  VB_CHECK(parsed_again.has_value() && write_netlist(*parsed_again) == text);
  return 0;
}
