// Parses any bytes as the file of a fabric, and as a file of faults.  If parse() reads a fabric, it
// must also read the same fabric from the text of to_text().

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace verbena::plan;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto fabric = parse(text);
  if (fabric) {
    const auto again = parse(to_text(*fabric));
    VB_CHECK(again.has_value() && *again == *fabric);
  } else {
    VB_CHECK(fabric.error().line > 0 && fabric.error().column > 0 && !fabric.error().text.empty());
  }
  const auto faults = parse_faults(text);
  VB_CHECK(faults.has_value() || !faults.error().text.empty());
  return 0;
}
