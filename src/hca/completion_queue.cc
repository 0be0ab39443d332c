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
  const std::scoped_lock lock(consumers_mutex_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t tail = tail_.load(std::memory_order_seq_cst);
  const auto count = static_cast<unsigned>(std::min<std::size_t>(tail - head, out.size()));
  for (unsigned i = 0; i < count; ++i) {
    const Entry& entry = ring_[(head + i) & mask_];
    out[i] = entry.completion;
    // The slot is freed only when its completion is polled.  So a program that posts until its
    // queue is full cannot overflow a CQ of the same size.
    if (entry.slot.word != nullptr) {
      entry.slot.word->store(entry.slot.free_value, std::memory_order_release);
    }
  }
  head_.store(head + count, std::memory_order_release);
  if (head + count == tail) note_emptied();
  return count;
}

void CompletionQueue::arm(bool solicited_only) {
  // Two threads may arm one CQ.  If one of them requests kAnyCompletion, this request takes effect.
  std::uint8_t current = armed_.load(std::memory_order_seq_cst);
  const std::uint8_t request = solicited_only ? kSolicitedOnly : kAnyCompletion;
  while (!armed_.compare_exchange_weak(current, std::max(current, request),
                                       std::memory_order_seq_cst)) {
  }
}

bool CompletionQueue::push(const WorkCompletion& completion, WqeSlot slot, bool solicited) {
  if (push_position_ - head_.load(std::memory_order_acquire) > mask_) return false;
  ring_[push_position_++ & mask_] = {completion, slot};
  unpublished_solicited_ |= solicited;
  return true;
}

bool CompletionQueue::publish() {
  const bool solicited = std::exchange(unpublished_solicited_, false);
  if (push_position_ == tail_.load(std::memory_order_relaxed)) return false;
  tail_.store(push_position_, std::memory_order_seq_cst);
  const std::uint8_t armed = armed_.load(std::memory_order_seq_cst);
  const bool must_notify = armed == kAnyCompletion || (armed == kSolicitedOnly && solicited);
  if (must_notify) armed_.store(kNotArmed, std::memory_order_seq_cst);
  return must_notify;
}

bool CompletionQueue::resize(std::uint32_t entries) {
  const std::uint32_t mask = mask_for(entries);
  auto ring = std::make_unique<Entry[]>(std::size_t{mask} + 1);
  const std::scoped_lock lock(consumers_mutex_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  if (push_position_ - head > entries) return false;
  for (std::uint32_t i = head; i != push_position_; ++i) ring[i & mask] = ring_[i & mask_];
  ring_ = std::move(ring);
  mask_ = mask;
  overflow_reported = false;
  return true;
}

void CompletionQueue::remove_completions(Qpn qpn) {
  const std::scoped_lock lock(consumers_mutex_);
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  std::uint32_t write_position = head_.load(std::memory_order_relaxed);
  std::uint32_t new_tail = write_position;
  for (std::uint32_t read_position = write_position; read_position != push_position_;
       ++read_position) {
    if (read_position == tail) new_tail = write_position;
    const Entry& entry = ring_[read_position & mask_];
    if (entry.completion.qpn == qpn) {
      // Frees the slot as poll() does, because the slot may belong to a queue that still exists,
      // such as an SRQ.
      if (entry.slot.word != nullptr) {
        entry.slot.word->store(entry.slot.free_value, std::memory_order_release);
      }
      continue;
    }
    if (read_position != write_position)
      ring_[write_position & mask_] = ring_[read_position & mask_];
    ++write_position;
  }
  if (tail == push_position_) new_tail = write_position;
  push_position_ = write_position;
  tail_.store(new_tail, std::memory_order_seq_cst);
}

}  // namespace verbena::hca
