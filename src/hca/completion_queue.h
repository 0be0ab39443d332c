#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "hca/list.h"
#include "hca/types.h"

namespace verbena::hca {

// Identifies the slot of a request in its work queue.  When the completion of the request is
// polled, the CQ stores `free_value` in `*word`.  That frees the slot.
struct WqeSlot {
  std::atomic<std::uint32_t>* word = nullptr;
  std::uint32_t free_value = 0;
};

// Holds completions (vol1 10.8) in a ring that the driver fills and any thread empties.
//
//   driver --push()--> [ | | | ] --poll()--> consumers, one at a time under the CQ's mutex
//
// A pushed completion can be polled after the next publish().  The result of publish() says if the
// consumer must be notified.
//
// Arming (vol1 11.4.2.2).  The consumer arms the CQ and then polls.  The driver adds a completion
// and then checks whether the CQ is armed.  Both sides do their two steps in sequentially
// consistent order.  So at least one side sees the other's first step, and no completion is missed.
//
// Empty polls.  A program that finds the queue empty probably waits for a new completion.  The
// driver can ask if a poll has left the queue empty since a certain call of start_epoch().  Each
// call starts an epoch with a new number.  A poll that leaves the queue empty stores the number of
// the current epoch, unless this number is already stored.  So a program that polls an empty queue
// repeatedly writes no memory.
//
// Invariants: head_ <= tail_ <= push_position_ <= head_ + capacity (free-running numbers); entries
// in [head_, tail_) belong to consumers, all others to the driver.
class CompletionQueue {
 public:
  CompletionQueue(std::uint32_t entries, std::uint64_t cookie);

  // Only the driver may call the next two functions.
  std::uint32_t capacity() const { return mask_ + 1; }
  std::uint64_t cookie() const { return cookie_; }

  // Any thread may call the next two functions.  poll() returns the number of completions that it
  // has stored in `out`.
  unsigned poll(std::span<WorkCompletion> out);
  void arm(bool solicited_only);

  // ---- driver
  // Adds a completion.  Returns false if the ring is full: the completion is lost, and the caller
  // reports an error.
  bool push(const WorkCompletion& completion, WqeSlot slot, bool solicited);
  // Makes the pushed completions visible.  Returns true if the consumer must be notified, because
  // it has armed the CQ for one of these completions.
  bool publish();
  // Starts a new epoch, and returns its number for was_emptied_since().
  std::uint32_t start_epoch() {
    const std::uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
    epoch_.store(epoch, std::memory_order_relaxed);
    return epoch;
  }
  // Returns true if a poll has left the queue empty in this epoch or in a later one.
  bool was_emptied_since(std::uint32_t epoch) const {
    return static_cast<std::int32_t>(last_emptied_epoch_.load(std::memory_order_relaxed) - epoch) >=
           0;
  }
  // Removes the completions of a QP that is destroyed or reset.
  void remove_completions(Qpn qpn);
  // Changes the capacity to at least `entries` and keeps the content.  Returns false, and changes
  // nothing, if the CQ contains more than `entries` completions.
  bool resize(std::uint32_t entries);

  // The next members store the driver's state of this queue.
  std::uint32_t queue_pairs = 0;  // a QP that uses the CQ for sends and for receives counts twice
  CqHandle handle{};
  bool notify_pending = false;
  bool error_pending = false;
  bool overflow_reported = false;
  ListLink<CompletionQueue> event_link{};
  ListLink<CompletionQueue> publish_link{};

 private:
  struct Entry {
    WorkCompletion completion{};
    WqeSlot slot{};
  };
  enum Arming : std::uint8_t { kNotArmed, kSolicitedOnly, kAnyCompletion };

  static std::uint32_t mask_for(std::uint32_t entries);
  void note_emptied() {
    const std::uint32_t epoch = epoch_.load(std::memory_order_relaxed);
    if (last_emptied_epoch_.load(std::memory_order_relaxed) != epoch) {
      last_emptied_epoch_.store(epoch, std::memory_order_relaxed);
    }
  }

  // The driver changes the next two members under the mutex.  So the driver may read them without
  // the mutex, and other threads must hold the mutex to read them.
  std::uint32_t mask_;
  std::unique_ptr<Entry[]> ring_;
  const std::uint64_t cookie_;
  std::uint32_t push_position_ = 0;     // only the driver uses it
  bool unpublished_solicited_ = false;  // a solicited completion was pushed since publish()
  std::mutex consumers_mutex_;
  alignas(64) std::atomic<std::uint32_t> head_ = 0;
  // The epoch of the last poll that left the CQ empty.
  std::atomic<std::uint32_t> last_emptied_epoch_ = 0;
  alignas(64) std::atomic<std::uint32_t> tail_ = 0;
  std::atomic<std::uint32_t> epoch_ = 0;  // the current epoch
  std::atomic<std::uint8_t> armed_ = kNotArmed;
};

}  // namespace verbena::hca
