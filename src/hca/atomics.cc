#include "hca/atomics.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"

namespace verbena::hca {

std::uint64_t execute_atomic(wire::Opcode opcode, const wire::AtomicEth& operands,
                             std::span<std::byte> target) {
  VB_CHECK(target.size() == kAtomicBytes &&
           is_atomic_address(reinterpret_cast<std::uintptr_t>(target.data())));
  const std::atomic_ref number(*reinterpret_cast<std::uint64_t*>(target.data()));
  if (wire::operation_of(opcode) == wire::Operation::kFetchAdd) {
    return number.fetch_add(operands.swap_or_add);
  }
  std::uint64_t original = operands.compare;
  number.compare_exchange_strong(original, operands.swap_or_add);
  return original;
}

void AtomicResults::add(Psn psn, std::uint64_t original) {
  if (results_.empty()) return;
  results_[next_index_] = {psn, original};
  next_index_ = (next_index_ + 1) % results_.size();
  count_ = std::min(count_ + 1, results_.size());
}

std::optional<std::uint64_t> AtomicResults::find(Psn psn) const {
  for (std::size_t age = 1; age <= count_; ++age) {
    const StoredResult& stored = results_[(next_index_ + results_.size() - age) % results_.size()];
    if (stored.psn == psn) return stored.original;
  }
  return std::nullopt;
}

}  // namespace verbena::hca
