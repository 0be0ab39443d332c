#include "faults/loss.h"

namespace verbena::faults {

bool is_lost(const Loss& loss, std::uint64_t packet_number) {
  // SplitMix64 gives independent results for neighbouring packet numbers and seeds.
  std::uint64_t bits = loss.seed + (packet_number + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  return bits % Loss::kAll < loss.per_million;
}

}  // namespace verbena::faults
