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

// Remembers the round trip time of each recent peer: how long a message and its answer took.  Part
// of that is the time that the peer's consumer needs, so a shorter measurement replaces the value,
// and a longer one raises it by an eighth of the difference.
//
// An answer that comes after a repeat may belong to the first message or to the repeat (Karn).  The
// answer is taken as that to the first message, but its time is limited to twice the known value
// (`kGuessMax` if there is none).  So a few answers suffice to learn that a peer is distant, and
// one lost message has little effect.
class RoundTrips {
 public:
  void record(const Gid& peer, Duration took, bool after_repeats) {
    Entry& known = entries_[slot(peer)];
    if (known.peer != peer || known.took == Duration{}) {
      known = {peer, std::clamp(took, kMin, after_repeats ? kGuessMax : Duration::max())};
      return;
    }
    if (after_repeats) took = std::min(took, 2 * known.took);
    const Duration longer = known.took + (took - known.took) / 8;
    known.took = std::max(std::min(took, longer), kMin);
  }

  void record(const Gid& peer, const Retry& retry, Time now) {
    record(peer, retry.since_first_send(now), retry.tries() > 1);
  }

  std::optional<Duration> of(const Gid& peer) const {
    const Entry& known = entries_[slot(peer)];
    if (known.peer != peer || known.took == Duration{}) return std::nullopt;
    return known.took;
  }

 private:
  static constexpr unsigned kSlotBits = 8;
  static constexpr Duration kMin = std::chrono::microseconds(10);
  static constexpr Duration kGuessMax = std::chrono::milliseconds(100);
  struct Entry {
    Gid peer{};
    Duration took{};
  };

  // Two peers with the same slot overwrite each other.
  static std::size_t slot(const Gid& peer) {
    const auto halves = std::bit_cast<std::array<std::uint64_t, 2>>(peer);
    const std::uint64_t mixed = (halves[0] ^ std::rotl(halves[1], 32)) * 0x9e3779b97f4a7c15;
    return mixed >> (64 - kSlotBits);
  }

  std::array<Entry, std::size_t{1} << kSlotBits> entries_{};
};

}  // namespace verbena::cm
