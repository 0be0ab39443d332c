#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/strong.h"
#include "hca/types.h"
#include "wire/headers.h"

// The responder's side of atomic operations (vol1 9.4.5).
namespace verbena::hca {

// A remote address that an atomic may name: "naturally aligned".
constexpr bool is_atomic_address(std::uint64_t address) { return address % kAtomicBytes == 0; }

// Fetches the number and puts what the operation makes of it in its place; the old one is the
// answer.  One instruction of this machine, so atomic against whatever else reaches the memory:
// other QPs and adapters, and the program's own std::atomic.  `at` has 8 bytes, aligned; numbers
// have this machine's byte order.
std::uint64_t execute_atomic(wire::Opcode opcode, const wire::AtomicEth& operands,
                             std::span<std::byte> at);

// The answers of the latest atomics: a duplicate gets the answer of the first, because executing it
// again would be wrong (vol1 9.7.5.1).  A requester has no more under way than was agreed, so
// what is older than that is never asked for again.
class AtomicAnswers {
 public:
  // So many will be under way at most.
  void reserve(std::size_t atomics) {
    if (answers_.size() >= atomics) return;
    if (!answers_.empty()) {  // the oldest first, so that there is room behind the newest
      const std::size_t oldest = (next_ + answers_.size() - count_) % answers_.size();
      std::ranges::rotate(answers_, answers_.begin() + static_cast<std::ptrdiff_t>(oldest));
    }
    answers_.resize(atomics);
    next_ = count_;
  }

  void clear() { count_ = 0; }
  void add(Psn psn, std::uint64_t original);
  std::optional<std::uint64_t> find(Psn psn) const;

 private:
  struct Answer {
    Psn psn{};
    std::uint64_t original = 0;
  };
  std::vector<Answer> answers_;  // a ring
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

}  // namespace verbena::hca
