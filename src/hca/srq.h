#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "hca/completion_queue.h"
#include "hca/list.h"
#include "hca/memory.h"
#include "hca/types.h"
#include "hca/work_queue.h"

namespace verbena::hca {

struct Shared;

// A shared receive queue (vol1 10.2.9): receives that any of several QPs takes when a message of
// its own begins.
//
//   any thread --post()--> order_: | 5 | 2 | 7 | --take()--> the QP --> completion, polled
//                             slots_:  places of receives, taken in any order, free in any order
//
// Which QP has which receive is known when the first packet of its message comes; they end in any
// order.  So a receive stands in a slot that is its own until its completion has been polled (vol1
// 10.8.5.1), and the queue holds numbers of slots.
//
// The limit (vol1 10.2.9.1.3): once fewer receives than that wait, one event says so, and the limit
// is 0 again.
//
// Threads: post() anywhere, all else the driver.
class SharedReceiveQueue {
 public:
  // max_wr is rounded up to whole chunks.
  SharedReceiveQueue(Shared& shared, Pd& pd, const SrqCaps& caps, std::uint64_t cookie);
  SharedReceiveQueue(const SharedReceiveQueue&) = delete;
  SharedReceiveQueue& operator=(const SharedReceiveQueue&) = delete;

  // ---- any thread ----
  // kNoResources: the queue is full.
  Result<void> post(const RecvRequest& request);

  // ---- driver ----
  Pd& pd() const { return pd_; }
  std::uint64_t cookie() const { return cookie_; }
  const SrqCaps& caps() const { return caps_; }
  std::uint32_t limit() const { return limit_; }
  void set_limit(std::uint32_t limit);
  // kInvalidArgument: more receives than that are outstanding.
  Result<void> resize(std::uint32_t max_wr);

  std::uint32_t waiting() const { return tail_.load(std::memory_order_acquire) - head(); }
  bool empty() const { return waiting() == 0; }
  // The oldest one's slot.  REQUIRES: !empty().
  std::uint32_t front() const { return order_[head() & (order_.size() - 1)]; }
  // The same, out of the queue.
  std::uint32_t take();
  const RecvWqe& at(std::uint32_t slot) const;
  // What its completion takes along, so that the slot is free once that has been polled.
  WqeSlot release(std::uint32_t slot) { return {&busy(slot), 0}; }
  // There will be no completion.
  void drop(std::uint32_t slot) { busy(slot).store(0, std::memory_order_release); }

  // The engine's bookkeeping.
  SrqHandle handle{};
  std::uint32_t queue_pairs = 0;
  ListLink<SharedReceiveQueue> event_link{};  // in the list: the limit was reached

 private:
  static constexpr std::uint32_t kChunkSlots = 64;
  struct Chunk {
    std::array<std::atomic<std::uint32_t>, kChunkSlots> busy{};
    std::unique_ptr<std::byte[]> places;
  };

  static std::uint32_t whole_chunks(std::uint32_t slots);
  std::uint32_t head() const { return head_.load(std::memory_order_relaxed); }
  std::atomic<std::uint32_t>& busy(std::uint32_t slot) const {
    return chunks_[slot / kChunkSlots]->busy[slot % kChunkSlots];
  }
  RecvWqe& place(std::uint32_t slot) const;
  void grow(std::uint32_t slots);
  std::optional<std::uint32_t> free_slot();
  void look_at_limit();

  Shared& shared_;
  Pd& pd_;
  SrqCaps caps_;
  const std::uint64_t cookie_;
  const std::size_t stride_;
  std::mutex mutex_;                            // of those who post, and of resizing
  std::vector<std::unique_ptr<Chunk>> chunks_;  // never fewer, and none moves: completions point in
  std::vector<std::uint32_t> order_;            // a power of two, at least a place for each slot
  std::uint32_t next_slot_ = 0;                 // where to look first for a free one
  std::uint32_t limit_ = 0;
  alignas(64) std::atomic<std::uint32_t> head_ = 0;
  alignas(64) std::atomic<std::uint32_t> tail_ = 0;
};

// Where the receives of one QP come from: its own queue, or a shared one.  Driver only.
class ReceiveSource {
 public:
  ReceiveSource(RecvQueue& own, SharedReceiveQueue* shared, const Pd& pd)
      : own_(own), shared_(shared), pd_(pd) {}

  bool is_shared() const { return shared_ != nullptr; }
  // The domain whose keys the elements of its receives name (vol1 10.2.9.2: the shared queue's).
  const Pd& pd() const { return shared_ != nullptr ? shared_->pd() : pd_; }
  bool empty() const { return !taken_ && (shared_ != nullptr ? shared_->empty() : own_.empty()); }
  // The receive of the message in work, or the next one.  REQUIRES: !empty().
  const RecvWqe& head() const {
    if (shared_ == nullptr) return own_.at(own_.head());
    return shared_->at(taken_ ? *taken_ : shared_->front());
  }
  // A message of more than one packet begins: from now on no other QP gets its receive.
  void begin() {
    if (shared_ != nullptr && !taken_) taken_ = shared_->take();
  }
  // The receive at head() is completed; for its completion.
  WqeSlot release() {
    if (shared_ == nullptr) return own_.release();
    begin();
    const WqeSlot slot = shared_->release(*taken_);
    taken_.reset();
    return slot;
  }
  // A message has begun, and its receive is not completed.
  bool in_message() const { return taken_.has_value(); }
  // The QP is reset or destroyed: what it has taken is gone.
  void drop() {
    if (taken_) shared_->drop(*taken_);
    taken_.reset();
  }

 private:
  RecvQueue& own_;
  SharedReceiveQueue* const shared_;
  const Pd& pd_;
  std::optional<std::uint32_t> taken_;
};

}  // namespace verbena::hca
