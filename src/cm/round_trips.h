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

// Remembers the round trip time of each recent peer: how long a message and its answer took.  This
// time includes the time that the peer's consumer needs.  So a shorter measurement replaces the
// value, and a longer measurement raises it by an eighth of the difference.
//
// An answer that comes after a repeat may belong to the first message or to the repeat (see Karn's
// algorithm).  It counts as the answer to the first message, but as at most twice the remembered
// time (`kGuessMax` if no time is remembered).  So a few answers show that a peer is distant, and
// one lost message has little effect.
class RoundTrips {
 public:
  void record(const Gid& peer, Duration sample, bool after_repeats) {
    Entry& entry = entries_[slot(peer)];
    if (entry.peer != peer || entry.round_trip == Duration{}) {
      entry = {peer, std::clamp(sample, kMin, after_repeats ? kGuessMax : Duration::max())};
      return;
    }
    if (after_repeats) sample = std::min(sample, 2 * entry.round_trip);
    const Duration raised = entry.round_trip + (sample - entry.round_trip) / 8;
    entry.round_trip = std::max(std::min(sample, raised), kMin);
  }

  void record(const Gid& peer, const Retry& retry, Time now) {
    record(peer, retry.since_first_send(now), retry.tries() > 1);
  }

  // Returns nothing for a peer without a measurement.
  std::optional<Duration> find(const Gid& peer) const {
    const Entry& entry = entries_[slot(peer)];
    if (entry.peer != peer || entry.round_trip == Duration{}) return std::nullopt;
    return entry.round_trip;
  }

 private:
  static constexpr unsigned kSlotBits = 8;
  static constexpr Duration kMin = std::chrono::microseconds(10);
  static constexpr Duration kGuessMax = std::chrono::milliseconds(100);
  struct Entry {
    Gid peer{};
    Duration round_trip{};
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
