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

// Executes an atomic operation on the number in `target`, and returns the old number for the
// response.  The operation is one operation of std::atomic_ref.  So it is atomic with respect to
// the atomics of other QPs and of other engines, and to the std::atomic objects of the program.
// Numbers have the byte order of this machine.  REQUIRES: `target` is 8 aligned bytes.
std::uint64_t execute_atomic(wire::Opcode opcode, const wire::AtomicEth& operands,
                             std::span<std::byte> target);

// Stores the results of the latest atomics.  A duplicate request gets the result of the first
// execution, because a second execution would be wrong (vol1 9.7.5.1).  A requester has at most
// max_dest_rd_atomic atomics outstanding, so it never repeats an atomic whose result was
// overwritten.
class AtomicResults {
 public:
  // Reserves memory for this number of outstanding atomics.
  void reserve(std::size_t atomic_count) {
    if (results_.size() >= atomic_count) return;
    if (!results_.empty()) {  // moves the oldest result to the front, so that the new space follows
                              // the newest
      const std::size_t oldest = (next_index_ + results_.size() - count_) % results_.size();
      std::ranges::rotate(results_, results_.begin() + static_cast<std::ptrdiff_t>(oldest));
    }
    results_.resize(atomic_count);
    next_index_ = count_;
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
  std::size_t next_index_ = 0;         // the index for the next result
  std::size_t count_ = 0;              // the number of stored results
};

}  // namespace verbena::hca
