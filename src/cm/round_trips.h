#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "base/time.h"
#include "cm/retry.h"

namespace verbena::cm {

// How long a message and its answer took, for each of the peers last spoken with.  Part of that is
// what the peer's consumer needs, so it is the shortest that counts, and a longer one a little.
//
// An answer that comes after a repeat may be the first message's or the repeat's (Karn): it counts
// as the first one's, but no more than twice what was known (`kGuessMax`, if nothing was).  So a
// peer that is far away is learnt of in some steps, and a lost message is soon forgotten.
class RoundTrips {
 public:
  void answered(const Gid& peer, Duration took, bool after_repeats) {
    Entry& known = entries_[place(peer)];
    if (known.peer != peer || known.took == Duration{}) {
      known = {peer, std::clamp(took, kLeast, after_repeats ? kGuessMax : Duration::max())};
      return;
    }
    if (after_repeats) took = std::min(took, 2 * known.took);
    const Duration longer = known.took + (took - known.took) / 8;
    known.took = std::max(std::min(took, longer), kLeast);
  }

  void answered(const Gid& peer, const Retry& asked, Time now) {
    answered(peer, asked.since_said(now), asked.tries() > 1);
  }

  std::optional<Duration> of(const Gid& peer) const {
    const Entry& known = entries_[place(peer)];
    if (known.peer != peer || known.took == Duration{}) return std::nullopt;
    return known.took;
  }

 private:
  static constexpr unsigned kPlaceBits = 8;
  static constexpr Duration kLeast = std::chrono::microseconds(10);
  static constexpr Duration kGuessMax = std::chrono::milliseconds(100);
  struct Entry {
    Gid peer{};
    Duration took{};
  };

  // Two peers at one place forget each other's.
  static std::size_t place(const Gid& peer) {
    const auto halves = std::bit_cast<std::array<std::uint64_t, 2>>(peer);
    const std::uint64_t mixed = (halves[0] ^ std::rotl(halves[1], 32)) * 0x9e3779b97f4a7c15;
    return mixed >> (64 - kPlaceBits);
  }

  std::array<Entry, std::size_t{1} << kPlaceBits> entries_{};
};

}  // namespace verbena::cm
