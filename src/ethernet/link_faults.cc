#include "ethernet/link_faults.h"

namespace verbena::ethernet {

bool is_lost(const Loss& loss, std::uint64_t packet) {
  // SplitMix64: neighbouring numbers and seeds give results that do not depend on each other.
  std::uint64_t bits = loss.seed + (packet + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  return bits % Loss::kAll < loss.per_million;
}

void LinkFaults::set_link(RailId rail, bool up) {
  if (up) {
    pulled_.erase(rail);
  } else {
    pulled_.insert(rail);
  }
}

void LinkFaults::set_host(HostIndex host, bool on) {
  if (on) {
    off_.erase(host);
  } else {
    off_.insert(host);
  }
}

void LinkFaults::set_loss(RailId rail, const Loss& loss) {
  if (loss.per_million == 0) {
    lossy_.erase(rail);
  } else {
    lossy_[rail] = {.loss = loss};
  }
}

Loss LinkFaults::loss(RailId rail) const {
  const auto found = lossy_.find(rail);
  return found == lossy_.end() ? Loss{} : found->second.loss;
}

bool LinkFaults::loses_next(RailId rail) {
  const auto found = lossy_.find(rail);
  return found != lossy_.end() && is_lost(found->second.loss, found->second.packets++);
}

}  // namespace verbena::ethernet
