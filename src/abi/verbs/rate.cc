#include <infiniband/verbs.h>

#include <algorithm>
#include <array>

#include "abi/abi.h"

// Converts static rates with the numbers of Debian's library (tests/abi/tables.txt).

namespace {

struct Rate {
  int rate;      // enum ibv_rate; an int because programs pass other numbers too
  int multiple;  // of 2.5 Gbit/s; -1: not a multiple
  int mbps;
};

// clang-format off
constexpr std::array<Rate, 23> kRates{{
    {IBV_RATE_2_5_GBPS,   1,    2500},
    {IBV_RATE_5_GBPS,     2,    5000},
    {IBV_RATE_10_GBPS,    4,   10000},
    {IBV_RATE_20_GBPS,    8,   20000},
    {IBV_RATE_30_GBPS,   12,   30000},
    {IBV_RATE_40_GBPS,   16,   40000},
    {IBV_RATE_60_GBPS,   24,   60000},
    {IBV_RATE_80_GBPS,   32,   80000},
    {IBV_RATE_120_GBPS,  48,  120000},
    {IBV_RATE_14_GBPS,   -1,   14062},
    {IBV_RATE_56_GBPS,   -1,   56250},
    {IBV_RATE_112_GBPS,  -1,  112500},
    {IBV_RATE_168_GBPS,  -1,  168750},
    {IBV_RATE_25_GBPS,   -1,   25781},
    {IBV_RATE_100_GBPS,  -1,  103125},
    {IBV_RATE_200_GBPS,  -1,  206250},
    {IBV_RATE_300_GBPS,  -1,  309375},
    {IBV_RATE_28_GBPS,   11,   28125},
    {IBV_RATE_50_GBPS,   20,   53125},
    {IBV_RATE_400_GBPS, 160,  425000},
    {IBV_RATE_600_GBPS, 240,  637500},
    {IBV_RATE_800_GBPS, 320,  850000},
    {IBV_RATE_1200_GBPS, 480, 1275000},
}};
// clang-format on

const Rate* find(auto member, auto value) {
  const auto* it = std::ranges::find(kRates, value, member);
  return it != kRates.end() ? it : nullptr;
}

}  // namespace

VB_EXPORT int ibv_rate_to_mult(ibv_rate rate) {
  const Rate* found = find(&Rate::rate, static_cast<int>(rate));
  return found != nullptr ? found->multiple : -1;
}

VB_EXPORT ibv_rate mult_to_ibv_rate(int mult) {
  const Rate* found = mult > 0 ? find(&Rate::multiple, mult) : nullptr;
  return found != nullptr ? static_cast<ibv_rate>(found->rate) : IBV_RATE_MAX;
}

VB_EXPORT int ibv_rate_to_mbps(ibv_rate rate) {
  const Rate* found = find(&Rate::rate, static_cast<int>(rate));
  return found != nullptr ? found->mbps : -1;
}

VB_EXPORT ibv_rate mbps_to_ibv_rate(int mbps) {
  const Rate* found = find(&Rate::mbps, mbps);
  return found != nullptr ? static_cast<ibv_rate>(found->rate) : IBV_RATE_MAX;
}
