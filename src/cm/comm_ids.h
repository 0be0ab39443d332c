#pragma once

#include <array>
#include <cstdint>

#include "base/random.h"
#include "base/strong.h"

namespace verbena::cm {

// Makes communication ids that look random and repeat only after all others have been used.  A peer
// may still repeat a message of an old connection, and the id in that message must not belong to a
// new connection.  The ids are a counter that passes through a small keyed permutation of 32 bits
// (four Feistel rounds).
class CommIds {
 public:
  explicit CommIds(Random& random) : next_(random.next32()) {
    for (auto& key : keys_) key = random.next();
  }

  // Never returns 0.  The caller skips ids that are in use.
  CommId next() {
    CommId id;
    do {
      id.value = permute(next_++);
    } while (id.value == 0);
    return id;
  }

 private:
  std::uint32_t permute(std::uint32_t number) const {
    auto left = static_cast<std::uint16_t>(number >> 16);
    auto right = static_cast<std::uint16_t>(number);
    for (const std::uint64_t key : keys_) {
      std::uint64_t mixed = (right ^ key) * 0x9e3779b97f4a7c15;
      mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9;
      const auto new_right = static_cast<std::uint16_t>(left ^ (mixed >> 40));
      left = right;
      right = new_right;
    }
    return std::uint32_t{left} << 16 | right;
  }

  std::array<std::uint64_t, 4> keys_{};
  std::uint32_t next_;
};

}  // namespace verbena::cm
