#pragma once

#include <array>
#include <cstdint>

namespace verbena {

// Represents a fraction in [0, 1] by integers, so that a seed gives the same run on every machine.
struct Ratio {
  std::uint32_t numerator = 0;
  std::uint32_t denominator = 1;
};

// Returns the probability with which a run of `length` items must begin at each item that is
// outside of runs.  Then the fraction `inside` of all items is inside of runs.
constexpr Ratio run_start_probability(Ratio inside, std::uint32_t length) {
  return {inside.numerator, length * inside.denominator - (length - 1) * inside.numerator};
}

// Generates all random numbers of the stack, by ChaCha with 12 rounds.  In production the caller
// gives a key of 256 bits from the kernel, so that nobody can guess R_Keys, QPNs and PSNs.  In a
// simulation the caller gives a seed; the run then replays bit for bit, even after an upgrade of
// compiler or library.  Not thread-safe: each owner has a generator of its own.
class Random {
 public:
  using Key = std::array<std::uint32_t, 8>;

  explicit Random(const Key& key) : key_(key) {}
  explicit Random(std::uint64_t seed);

  // Returns a number of 64 random bits.
  std::uint64_t next();
  std::uint32_t next32() { return static_cast<std::uint32_t>(next()); }
  // Returns a number that is uniform in [0, bound).  REQUIRES: bound > 0.
  std::uint64_t below(std::uint64_t bound);
  // Returns true with the probability `ratio`.
  bool chance(Ratio ratio) { return below(ratio.denominator) < ratio.numerator; }
  // Makes another generator, whose numbers are independent of the numbers of this one.
  Random fork();

 private:
  void refill();

  Key key_;
  std::uint64_t counter_ = 0;
  std::array<std::uint32_t, 16> block_{};
  unsigned used_ = 16;  // block_[used_] is the next unused word; 16: all words are used
};

}  // namespace verbena
