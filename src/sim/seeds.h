#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace verbena::sim {

// The seeds of one simulation test.  VB_SEED=n replays one; VB_SEEDS=n sets how many there are (the
// soak asks for more than CI does); otherwise 0 .. batch-1, so that two runs give the same verdict.
// For tests alone: it looks at the environment.
inline std::vector<std::uint64_t> seeds(std::uint64_t batch) {
  if (const char* one = std::getenv("VB_SEED")) return {std::strtoull(one, nullptr, 0)};
  if (const char* count = std::getenv("VB_SEEDS")) batch = std::strtoull(count, nullptr, 0);
  std::vector<std::uint64_t> all(batch);
  for (std::uint64_t i = 0; i < batch; ++i) all[i] = i;
  return all;
}

}  // namespace verbena::sim
