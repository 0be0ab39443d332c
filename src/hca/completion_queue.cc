#include "hca/completion_queue.h"

#include <algorithm>
#include <bit>

namespace verbena::hca {

CompletionQueue::CompletionQueue(std::uint32_t entries, std::uint64_t cookie)
    : mask_(mask_for(entries)),
      ring_(std::make_unique<Entry[]>(std::size_t{mask_} + 1)),
      cookie_(cookie) {}

std::uint32_t CompletionQueue::mask_for(std::uint32_t entries) {
  return std::bit_ceil(std::max(entries, 1u)) - 1;
}

unsigned CompletionQueue::poll(std::span<WorkCompletion> out) {
  // An empty queue is seen without the mutex: a thread that spins disturbs nobody.
  if (tail_.load(std::memory_order_seq_cst) == head_.load(std::memory_order_relaxed)) return 0;
  const std::scoped_lock lock(consumers_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t tail = tail_.load(std::memory_order_seq_cst);
  const auto count = static_cast<unsigned>(std::min<std::size_t>(tail - head, out.size()));
  for (unsigned i = 0; i < count; ++i) {
    const Entry& entry = ring_[(head + i) & mask_];
    out[i] = entry.completion;
    // Only now: who posts until the queue is full can never have more under way than the CQ holds.
    if (entry.slot.freed != nullptr) {
      entry.slot.freed->store(entry.slot.after, std::memory_order_release);
    }
  }
  head_.store(head + count, std::memory_order_release);
  return count;
}

void CompletionQueue::arm(bool solicited_only) {
  // Two threads may arm one CQ: who wants more wins.
  std::uint8_t was = armed_.load(std::memory_order_seq_cst);
  const std::uint8_t wanted = solicited_only ? kSolicited : kAny;
  while (!armed_.compare_exchange_weak(was, std::max(was, wanted), std::memory_order_seq_cst)) {
  }
}

bool CompletionQueue::push(const WorkCompletion& completion, WqeSlot slot, bool solicited,
                           bool* notify) {
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head_.load(std::memory_order_acquire) > mask_) return false;
  ring_[tail & mask_] = {completion, slot};
  tail_.store(tail + 1, std::memory_order_seq_cst);
  const std::uint8_t armed = armed_.load(std::memory_order_seq_cst);
  if (armed == kAny || (armed == kSolicited && solicited)) {
    armed_.store(kNot, std::memory_order_seq_cst);
    *notify = true;
  }
  return true;
}

bool CompletionQueue::resize(std::uint32_t entries) {
  const std::uint32_t mask = mask_for(entries);
  auto ring = std::make_unique<Entry[]>(std::size_t{mask} + 1);
  const std::scoped_lock lock(consumers_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head > entries) return false;
  for (std::uint32_t i = head; i != tail; ++i) ring[i & mask] = ring_[i & mask_];
  ring_ = std::move(ring);
  mask_ = mask;
  overflown = false;
  return true;
}

void CompletionQueue::forget(Qpn qpn) {
  const std::scoped_lock lock(consumers_);
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  std::uint32_t to = head_.load(std::memory_order_relaxed);
  for (std::uint32_t from = to; from != tail; ++from) {
    const Entry& entry = ring_[from & mask_];
    if (entry.completion.qpn == qpn) {
      // As if it had been polled: its place may be one of a queue that lives on.
      if (entry.slot.freed != nullptr) {
        entry.slot.freed->store(entry.slot.after, std::memory_order_release);
      }
      continue;
    }
    if (from != to) ring_[to & mask_] = ring_[from & mask_];
    ++to;
  }
  tail_.store(to, std::memory_order_seq_cst);
}

}  // namespace verbena::hca
