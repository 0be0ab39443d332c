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

// Executes atomic operations for the responder (vol1 9.4.5).
namespace verbena::hca {

// Atomics need a naturally aligned remote address.
constexpr bool is_atomic_address(std::uint64_t address) { return address % kAtomicBytes == 0; }

// Reads the number in `target`, replaces it by the result of the operation, and returns the old
// number, which is the response.  One instruction of this machine does all that.  So the operation
// is atomic against all other accesses: by other QPs and adapters, and by the program's own
// std::atomic.  Numbers have this machine's byte order.  REQUIRES: `target` is 8 aligned bytes.
std::uint64_t execute_atomic(wire::Opcode opcode, const wire::AtomicEth& operands,
                             std::span<std::byte> target);

// Stores the results of the latest atomics.  A duplicate request gets the result of the first
// execution, because a second execution would be wrong (vol1 9.7.5.1).  A requester has at most the
// agreed number of atomics outstanding, so it never repeats an older atomic.
class AtomicResults {
 public:
  // Reserves memory for this number of outstanding atomics.
  void reserve(std::size_t atomics) {
    if (results_.size() >= atomics) return;
    if (!results_.empty()) {  // moves the oldest result to the front, to make room after the newest
      const std::size_t oldest = (next_ + results_.size() - count_) % results_.size();
      std::ranges::rotate(results_, results_.begin() + static_cast<std::ptrdiff_t>(oldest));
    }
    results_.resize(atomics);
    next_ = count_;
  }

  void clear() { count_ = 0; }
  void add(Psn psn, std::uint64_t original);
  // Returns the result of the atomic with this PSN, or none if it is not stored.
  std::optional<std::uint64_t> find(Psn psn) const;

 private:
  struct StoredResult {
    Psn psn{};
    std::uint64_t original = 0;  // the number before the operation
  };
  std::vector<StoredResult> results_;  // a ring
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

}  // namespace verbena::hca
