#include "hca/completion_queue.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace verbena::hca {

CompletionQueue::CompletionQueue(std::uint32_t entries, std::uint64_t cookie)
    : mask_(mask_for(entries)),
      ring_(std::make_unique<Entry[]>(std::size_t{mask_} + 1)),
      cookie_(cookie) {}

std::uint32_t CompletionQueue::mask_for(std::uint32_t entries) {
  return std::bit_ceil(std::max(entries, 1u)) - 1;
}

unsigned CompletionQueue::poll(std::span<WorkCompletion> out) {
  // Detects an empty queue without the mutex, so that a spinning thread does not disturb others.
  if (tail_.load(std::memory_order_seq_cst) == head_.load(std::memory_order_relaxed)) {
    note_emptied();
    return 0;
  }
  const std::scoped_lock lock(consumers_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t tail = tail_.load(std::memory_order_seq_cst);
  const auto count = static_cast<unsigned>(std::min<std::size_t>(tail - head, out.size()));
  for (unsigned i = 0; i < count; ++i) {
    const Entry& entry = ring_[(head + i) & mask_];
    out[i] = entry.completion;
    // The slot is freed only when its completion is polled.  So a program that posts until its
    // queue is full cannot overflow a CQ of the same size.
    if (entry.slot.freed != nullptr) {
      entry.slot.freed->store(entry.slot.after, std::memory_order_release);
    }
  }
  head_.store(head + count, std::memory_order_release);
  if (head + count == tail) note_emptied();
  return count;
}

void CompletionQueue::arm(bool solicited_only) {
  // Two threads may arm one CQ; then the wider request counts.
  std::uint8_t was = armed_.load(std::memory_order_seq_cst);
  const std::uint8_t wanted = solicited_only ? kSolicited : kAny;
  while (!armed_.compare_exchange_weak(was, std::max(was, wanted), std::memory_order_seq_cst)) {
  }
}

bool CompletionQueue::push(const WorkCompletion& completion, WqeSlot slot, bool solicited) {
  if (filled_ - head_.load(std::memory_order_acquire) > mask_) return false;
  ring_[filled_++ & mask_] = {completion, slot};
  solicited_filled_ |= solicited;
  return true;
}

bool CompletionQueue::publish() {
  const bool solicited = std::exchange(solicited_filled_, false);
  if (filled_ == tail_.load(std::memory_order_relaxed)) return false;
  tail_.store(filled_, std::memory_order_seq_cst);
  const std::uint8_t armed = armed_.load(std::memory_order_seq_cst);
  const bool waits = armed == kAny || (armed == kSolicited && solicited);
  if (waits) armed_.store(kNot, std::memory_order_seq_cst);
  return waits;
}

bool CompletionQueue::resize(std::uint32_t entries) {
  const std::uint32_t mask = mask_for(entries);
  auto ring = std::make_unique<Entry[]>(std::size_t{mask} + 1);
  const std::scoped_lock lock(consumers_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  if (filled_ - head > entries) return false;
  for (std::uint32_t i = head; i != filled_; ++i) ring[i & mask] = ring_[i & mask_];
  ring_ = std::move(ring);
  mask_ = mask;
  overflow_reported = false;
  return true;
}

void CompletionQueue::forget(Qpn qpn) {
  const std::scoped_lock lock(consumers_);
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  std::uint32_t to = head_.load(std::memory_order_relaxed);
  std::uint32_t new_tail = to;
  for (std::uint32_t from = to; from != filled_; ++from) {
    if (from == tail) new_tail = to;
    const Entry& entry = ring_[from & mask_];
    if (entry.completion.qpn == qpn) {
      // Frees the slot as poll() does, because it may belong to a queue that still exists, such as
      // an SRQ.
      if (entry.slot.freed != nullptr) {
        entry.slot.freed->store(entry.slot.after, std::memory_order_release);
      }
      continue;
    }
    if (from != to) ring_[to & mask_] = ring_[from & mask_];
    ++to;
  }
  if (tail == filled_) new_tail = to;
  filled_ = to;
  tail_.store(new_tail, std::memory_order_seq_cst);
}

}  // namespace verbena::hca
