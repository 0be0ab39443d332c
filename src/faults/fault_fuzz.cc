// Reads a text as the words of a fault.
#include <cstdint>
#include <string_view>

#include "faults/fault.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto words = verbena::faults::words_of(text);
  if (const auto fault = verbena::faults::parse_fault(words, std::nullopt)) {
    if (fault->delay > verbena::faults::kDelayMax || fault->lost_per_million > 1'000'000) {
      __builtin_trap();
    }
  }
  return 0;
}
