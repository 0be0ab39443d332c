#include "wire/bth.h"

#include <algorithm>
#include <array>
#include <chrono>

namespace verbena::wire {
namespace {

constexpr std::array<std::uint32_t, 31> kCreditsOfCode = {
    0,   1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,  192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};
static_assert(std::ranges::is_sorted(kCreditsOfCode));

// Contains the RNR timers in units of 10 us.  From code 2 to code 31, the value doubles every two
// codes.  Code 0 has the value that would follow code 31.
constexpr std::array<std::uint32_t, 32> kRnrTimerOfCode = {
    65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
    48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
    2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

}  // namespace

std::optional<std::uint32_t> credits(std::uint8_t credit_code) {
  const unsigned code = credit_code & 31;
  if (code == kCreditsUnlimited) return std::nullopt;
  return kCreditsOfCode[code];
}

std::uint8_t credit_code(std::uint32_t receives) {
  const auto above = std::ranges::upper_bound(kCreditsOfCode, receives);
  return static_cast<std::uint8_t>(above - kCreditsOfCode.begin() - 1);
}

Duration rnr_timer(std::uint8_t timer_code) {
  return std::chrono::microseconds(10) * kRnrTimerOfCode[timer_code & 31];
}

}  // namespace verbena::wire
