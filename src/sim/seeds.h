#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace verbena::sim {

// Returns the seeds of one simulation test: 0 to batch-1, so that two runs have the same result.
// VB_SEED=n replays one seed; VB_SEEDS=n sets the number of seeds (the soak test uses more than
// CI).  Only tests may call it, because it reads the environment.
inline std::vector<std::uint64_t> seeds(std::uint64_t batch) {
  if (const char* one = std::getenv("VB_SEED")) return {std::strtoull(one, nullptr, 0)};
  if (const char* count = std::getenv("VB_SEEDS")) batch = std::strtoull(count, nullptr, 0);
  std::vector<std::uint64_t> all(batch);
  for (std::uint64_t i = 0; i < batch; ++i) all[i] = i;
  return all;
}

}  // namespace verbena::sim
