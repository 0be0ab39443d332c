#include "hca/srq.h"

#include <algorithm>
#include <bit>
#include <new>

#include "hca/qp_core.h"

namespace verbena::hca {

SharedReceiveQueue::SharedReceiveQueue(Shared& shared, Pd& pd, const SrqCaps& caps,
                                       std::uint64_t cookie)
    : shared_(shared),
      pd_(pd),
      caps_(caps),
      cookie_(cookie),
      stride_(sizeof(RecvWqe) + caps.max_sge * sizeof(Sge)) {
  caps_.max_wr = slots_end_ = round_up_to_chunks(caps.max_wr);
  grow(caps_.max_wr);
}

std::uint32_t SharedReceiveQueue::round_up_to_chunks(std::uint32_t slots) {
  return (slots + kChunkSlots - 1) / kChunkSlots * kChunkSlots;
}

RecvWqe& SharedReceiveQueue::wqe_in(std::uint32_t slot) const {
  std::byte* const address =
      chunks_[slot / kChunkSlots]->memory.get() + stride_ * (slot % kChunkSlots);
  return *std::launder(reinterpret_cast<RecvWqe*>(address));
}

const RecvWqe& SharedReceiveQueue::at(std::uint32_t slot) const { return wqe_in(slot); }

void SharedReceiveQueue::grow(std::uint32_t slots) {
  static_assert(alignof(RecvWqe) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  static_assert(sizeof(RecvWqe) % alignof(Sge) == 0 && sizeof(Sge) % alignof(RecvWqe) == 0);
  while (chunks_.size() * kChunkSlots < slots) {
    auto chunk = std::make_unique<Chunk>();
    chunk->memory = std::make_unique<std::byte[]>(stride_ * kChunkSlots);
    for (std::uint32_t i = 0; i < kChunkSlots; ++i) {
      ::new (chunk->memory.get() + stride_ * i) RecvWqe();
    }
    chunks_.push_back(std::move(chunk));
  }
  const std::size_t entries = std::bit_ceil(chunks_.size() * kChunkSlots);
  if (entries <= order_.size()) return;
  std::vector<std::uint32_t> order(entries);
  for (std::uint32_t i = head(); i != tail_.load(std::memory_order_relaxed); ++i) {
    order[i & (entries - 1)] = order_[i & (order_.size() - 1)];
  }
  order_ = std::move(order);
}

std::uint32_t SharedReceiveQueue::busy_count(std::uint32_t begin, std::uint32_t end) const {
  std::uint32_t count = 0;
  for (std::uint32_t slot = begin; slot < end; ++slot) {
    count += busy(slot).load(std::memory_order_acquire);
  }
  return count;
}

// Slots become free in nearly the order in which they were taken, so the first try usually
// succeeds.  After a resize() to fewer slots, slots from max_wr on may still hold receives.  Such
// receives count against the capacity until their slots are free.
std::optional<std::uint32_t> SharedReceiveQueue::find_free_slot() {
  if (slots_end_ > caps_.max_wr) {
    const std::uint32_t above = busy_count(caps_.max_wr, slots_end_);
    if (above == 0) slots_end_ = caps_.max_wr;
    if (above + busy_count(0, caps_.max_wr) >= caps_.max_wr) return std::nullopt;
  }
  for (std::uint32_t tries = 0; tries < caps_.max_wr; ++tries) {
    const std::uint32_t slot = next_slot_ < caps_.max_wr ? next_slot_ : 0;
    next_slot_ = slot + 1;
    if (busy(slot).load(std::memory_order_acquire) == 0) return slot;
  }
  return std::nullopt;
}

Result<void> SharedReceiveQueue::post(const RecvRequest& request) {
  if (request.sges.size() > caps_.max_sge) {
    return fail(Errc::kInvalidArgument, "more elements than the SRQ's max_sge");
  }
  const std::scoped_lock lock(mutex_);
  const auto slot = find_free_slot();
  if (!slot) {
    shared_.receives_refused.fetch_add(1, std::memory_order_relaxed);
    return fail(Errc::kNoResources, "the shared receive queue is full");
  }
  RecvWqe& wqe = wqe_in(*slot);
  wqe.wr_id = request.wr_id;
  std::uint64_t length = 0;
  wqe.sge_count = static_cast<std::uint32_t>(request.sges.size());
  Sge* to = RecvQueue::sge_space(wqe);
  for (const Sge& sge : request.sges) {
    ::new (to++) Sge(sge);
    length += sge.length;
  }
  wqe.length = saturated_length(length);
  busy(*slot).store(1, std::memory_order_relaxed);
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  order_[tail & (order_.size() - 1)] = *slot;
  tail_.store(tail + 1, std::memory_order_release);
  return {};
}

std::uint32_t SharedReceiveQueue::take() {
  const std::uint32_t slot = front();
  head_.store(head() + 1, std::memory_order_release);
  check_limit();
  return slot;
}

void SharedReceiveQueue::set_limit(std::uint32_t limit) {
  limit_ = limit;
  check_limit();
}

void SharedReceiveQueue::check_limit() {
  if (limit_ == 0 || waiting_count() >= limit_) return;
  limit_ = 0;
  shared_.srq_events.push_back(*this);
}

Result<void> SharedReceiveQueue::resize(std::uint32_t max_wr) {
  const std::scoped_lock lock(mutex_);
  const std::uint32_t slots = round_up_to_chunks(max_wr);
  if (busy_count(0, slots_end_) > slots || limit_ > slots) {
    return fail(Errc::kInvalidArgument,
                "more receives are outstanding than the new size, or the SRQ's limit is higher");
  }
  grow(slots);
  slots_end_ = std::max(slots_end_, slots);
  caps_.max_wr = slots;
  return {};
}

}  // namespace verbena::hca
