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

// Holds receives for several QPs (vol1 10.2.9): each QP takes a receive from this queue when a SEND
// begins, or when immediate data of a WRITE arrive.
//
//   any thread --post()--> order_: | 5 | 2 | 7 | --take()--> the QP --> completion, polled
//                              slots:  hold the receives; used and freed in any order
//
// A QP may take a receive long before its message is complete, so receives complete in any order.
// So each receive has its own slot until its completion is polled (vol1 10.8.5.1), and
// the queue contains slot numbers.
//
// The limit (vol1 10.2.9.1.3): when fewer receives wait than the limit, the queue raises one event
// and resets the limit to 0.
//
// Threads: any thread may call post(); the driver makes all other calls.
class SharedReceiveQueue {
 public:
  // Rounds max_wr up to whole chunks.
  SharedReceiveQueue(Shared& shared, Pd& pd, const SrqCaps& caps, std::uint64_t cookie);
  SharedReceiveQueue(const SharedReceiveQueue&) = delete;
  SharedReceiveQueue& operator=(const SharedReceiveQueue&) = delete;

  // ---- any thread ----
  // Posts a receive.  kNoResources: the queue is full.  kInvalidArgument: the request has more
  // elements than max_sge.
  Result<void> post(const RecvRequest& request);

  // ---- driver ----
  Pd& pd() const { return pd_; }
  std::uint64_t cookie() const { return cookie_; }
  const SrqCaps& caps() const { return caps_; }
  std::uint32_t limit() const { return limit_; }
  void set_limit(std::uint32_t limit);
  // Changes the capacity to `max_wr`, rounded up to whole chunks.  kInvalidArgument: more receives
  // are outstanding, or the limit is higher.
  Result<void> resize(std::uint32_t max_wr);

  std::uint32_t waiting_count() const { return tail_.load(std::memory_order_acquire) - head(); }
  bool empty() const { return waiting_count() == 0; }
  // Returns the slot of the oldest receive.  REQUIRES: !empty().
  std::uint32_t front() const { return order_[head() & (order_.size() - 1)]; }
  // Removes the oldest receive from the queue and returns its slot.
  std::uint32_t take();
  const RecvWqe& at(std::uint32_t slot) const;
  // Returns the slot for CompletionQueue::push().  The slot becomes free when the receive's
  // completion is polled.
  WqeSlot release(std::uint32_t slot) { return {&busy(slot), 0}; }
  // Frees the slot of a receive that gets no completion.
  void drop(std::uint32_t slot) { busy(slot).store(0, std::memory_order_release); }

  // The next members belong to the engine.
  SrqHandle handle{};
  std::uint32_t queue_pairs = 0;
  ListLink<SharedReceiveQueue> event_link{};  // linked if the limit was reached

 private:
  static constexpr std::uint32_t kChunkSlots = 64;
  struct Chunk {
    std::array<std::atomic<std::uint32_t>, kChunkSlots> busy{};  // 0: the slot is free
    std::unique_ptr<std::byte[]> memory;
  };

  static std::uint32_t round_up_to_chunks(std::uint32_t slots);
  std::uint32_t head() const { return head_.load(std::memory_order_relaxed); }
  std::atomic<std::uint32_t>& busy(std::uint32_t slot) const {
    return chunks_[slot / kChunkSlots]->busy[slot % kChunkSlots];
  }
  RecvWqe& wqe_in(std::uint32_t slot) const;
  void grow(std::uint32_t slots);
  // Returns how many of the slots [begin, end) hold a receive.
  std::uint32_t busy_count(std::uint32_t begin, std::uint32_t end) const;
  std::optional<std::uint32_t> find_free_slot();
  void check_limit();

  Shared& shared_;
  Pd& pd_;
  SrqCaps caps_;
  const std::uint64_t cookie_;
  const std::size_t stride_;
  std::mutex mutex_;                            // locked by post() and resize()
  std::vector<std::unique_ptr<Chunk>> chunks_;  // never removed: completions point into them
  std::vector<std::uint32_t> order_;            // a ring of 2^n entries, one for each slot
  std::uint32_t next_slot_ = 0;                 // the search for a free slot starts here
  std::uint32_t slots_end_ = 0;                 // all slots from here on are free
  std::uint32_t limit_ = 0;
  alignas(64) std::atomic<std::uint32_t> head_ = 0;
  alignas(64) std::atomic<std::uint32_t> tail_ = 0;
};

// Provides the receives of one QP, from the QP's own queue or an SRQ.  Only the driver may use this
// class.
class ReceiveSource {
 public:
  ReceiveSource(RecvQueue& own_queue, SharedReceiveQueue* srq, const Pd& pd)
      : own_queue_(own_queue), srq_(srq), pd_(pd) {}

  bool is_shared() const { return srq_ != nullptr; }
  // Returns the domain of the keys in the receives.  With an SRQ, this is the domain of the SRQ
  // (vol1 10.2.9.2).
  const Pd& pd() const { return srq_ != nullptr ? srq_->pd() : pd_; }
  bool empty() const {
    return !taken_slot_ && (srq_ != nullptr ? srq_->empty() : own_queue_.empty());
  }
  // Returns the receive of the current message, or else the next receive.  REQUIRES: !empty().
  const RecvWqe& head() const {
    if (srq_ == nullptr) return own_queue_.at(own_queue_.head());
    return srq_->at(taken_slot_ ? *taken_slot_ : srq_->front());
  }
  // Takes a receive from the SRQ for a message, so that no other QP gets this receive.
  void begin_message() {
    if (srq_ != nullptr && !taken_slot_) taken_slot_ = srq_->take();
  }
  // Removes the receive at head(), and returns its slot for CompletionQueue::push().
  WqeSlot release() {
    if (srq_ == nullptr) return own_queue_.release();
    begin_message();
    const WqeSlot slot = srq_->release(*taken_slot_);
    taken_slot_.reset();
    return slot;
  }
  // Returns true if a message has taken a receive from the SRQ, and this receive is not complete
  // yet.
  bool in_message() const { return taken_slot_.has_value(); }
  // Frees the slot of the receive that was taken, because the QP is reset or destroyed.
  void drop_taken() {
    if (taken_slot_) srq_->drop(*taken_slot_);
    taken_slot_.reset();
  }

 private:
  RecvQueue& own_queue_;
  SharedReceiveQueue* const srq_;
  const Pd& pd_;
  std::optional<std::uint32_t> taken_slot_;
};

}  // namespace verbena::hca
