#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace verbena::sim {

// kSanitized is true if this build has the address or thread sanitizer of GCC.  A sanitizer makes a
// simulation several times slower, but finds errors in a few runs, so tests may do less in such a
// build.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Returns the seeds of one simulation test: 0 to batch - 1, so that two runs have the same result.
// A build with a sanitizer runs a quarter of them.  VB_SEED=n replays one seed; VB_SEEDS=n sets the
// number of seeds (the soak test uses more than CI).  Only tests may call this function, because it
// reads the environment.
inline std::vector<std::uint64_t> seeds(std::uint64_t batch) {
  if (const char* seed = std::getenv("VB_SEED")) return {std::strtoull(seed, nullptr, 0)};
  if (kSanitized) batch = std::max<std::uint64_t>(batch / 4, 1);
  if (const char* count = std::getenv("VB_SEEDS")) batch = std::strtoull(count, nullptr, 0);
  std::vector<std::uint64_t> all(batch);
  for (std::uint64_t i = 0; i < batch; ++i) all[i] = i;
  return all;
}

}  // namespace verbena::sim
