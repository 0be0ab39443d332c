#include "base/random.h"

#include <bit>

#include "base/error.h"

namespace verbena {
namespace {

void quarter_round(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d) {
  a += b;
  d = std::rotl(d ^ a, 16);
  c += d;
  b = std::rotl(b ^ c, 12);
  a += b;
  d = std::rotl(d ^ a, 8);
  c += d;
  b = std::rotl(b ^ c, 7);
}

Random::Key expand(std::uint64_t seed) {
  Random::Key key{};
  key[0] = static_cast<std::uint32_t>(seed);
  key[1] = static_cast<std::uint32_t>(seed >> 32);
  return key;
}

}  // namespace

Random::Random(std::uint64_t seed) : Random(expand(seed)) {}

void Random::refill() {
  // Computes the block of RFC 8439 2.3 with 12 rounds, a 64-bit counter and no nonce.
  std::array<std::uint32_t, 16> start{0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
  for (unsigned i = 0; i < 8; ++i) start[4 + i] = key_[i];
  start[12] = static_cast<std::uint32_t>(counter_);
  start[13] = static_cast<std::uint32_t>(counter_ >> 32);
  ++counter_;

  auto x = start;
  for (int round = 0; round < 6; ++round) {
    quarter_round(x[0], x[4], x[8], x[12]);
    quarter_round(x[1], x[5], x[9], x[13]);
    quarter_round(x[2], x[6], x[10], x[14]);
    quarter_round(x[3], x[7], x[11], x[15]);
    quarter_round(x[0], x[5], x[10], x[15]);
    quarter_round(x[1], x[6], x[11], x[12]);
    quarter_round(x[2], x[7], x[8], x[13]);
    quarter_round(x[3], x[4], x[9], x[14]);
  }
  for (unsigned i = 0; i < 16; ++i) block_[i] = x[i] + start[i];
  used_ = 0;
}

std::uint64_t Random::next() {
  if (used_ + 2 > block_.size()) refill();
  const std::uint64_t low = block_[used_];
  const std::uint64_t high = block_[used_ + 1];
  used_ += 2;
  return high << 32 | low;
}

std::uint64_t Random::below(std::uint64_t bound) {
  VB_CHECK(bound > 0);
  // To avoid bias, draws again if the number lies in the last run of `bound` values, because that
  // run may be incomplete.
  const std::uint64_t limit = ~std::uint64_t{0} - ~std::uint64_t{0} % bound;
  std::uint64_t number = next();
  while (number >= limit) number = next();
  return number % bound;
}

Random Random::fork() {
  Key key{};
  for (auto& word : key) word = next32();
  return Random(key);
}

}  // namespace verbena
