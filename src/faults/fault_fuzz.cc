// Parses arbitrary bytes as the words of a fault.  Checks that delay and loss of an accepted
// fault are within their limits, and that formatting and parsing it again gives the same fault.

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "faults/fault.h"
#include "faults/loss.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace verbena::faults;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto fault = parse_fault(split_words(text), {});
  if (!fault) {
    VB_CHECK(!fault.error().empty());
    return 0;
  }
  VB_CHECK(fault->delay <= kDelayMax && fault->lost_per_million <= Loss::kAll);
  const auto parsed_again = parse_fault(split_words(text_of(*fault)), {});
  VB_CHECK(parsed_again.has_value() && *parsed_again == *fault);
  return 0;
}
