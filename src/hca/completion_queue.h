#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "hca/list.h"
#include "hca/types.h"

namespace verbena::hca {

// Identifies the slot of a request in its work queue.  Polling the request's completion sets
// `*freed` to `after`, which frees the slot.
struct WqeSlot {
  std::atomic<std::uint32_t>* freed = nullptr;
  std::uint32_t after = 0;
};

// Holds completions (vol1 10.8) in a ring that the driver fills and any thread empties.
//
//   driver --push()--> [ | | | ] --poll()--> consumers, one at a time under the CQ's mutex
//
// A pushed completion can be polled after publish(), which tells whether to notify the consumer.
//
// Arming (vol1 11.4.2.2).  The consumer arms and then polls; the driver adds and then checks
// whether the CQ is armed.  Both sides do these two steps in sequentially consistent order, so at
// least one of them sees the other's action, and no completion is missed.
//
// Invariants: head_ <= tail_ <= filled_ <= head_ + capacity (free-running numbers); entries in
// [head_, tail_) belong to consumers, all others to the driver.
class CompletionQueue {
 public:
  CompletionQueue(std::uint32_t entries, std::uint64_t cookie);

  // Driver.
  std::uint32_t capacity() const { return mask_ + 1; }
  std::uint64_t cookie() const { return cookie_; }

  // Any thread.
  unsigned poll(std::span<WorkCompletion> out);
  void arm(bool solicited_only);

  // Driver.  False: the ring was full; the completion is lost, and the caller reports an error.
  bool push(const WorkCompletion& completion, WqeSlot slot, bool solicited);
  // Driver.  True: the consumer has armed the CQ for the completions pushed since the last call.
  bool publish();
  // Driver: removes the completions of a QP that is destroyed or reset.
  void forget(Qpn qpn);
  // Driver: changes the capacity to at least `entries` and keeps the content.  False: the CQ
  // contains more than `entries` completions.
  bool resize(std::uint32_t entries);

  // The driver keeps its bookkeeping here.
  std::uint32_t queue_pairs = 0;
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
  enum Armed : std::uint8_t { kNot, kSolicited, kAny };

  static std::uint32_t mask_for(std::uint32_t entries);

  // The driver changes these under the mutex.  So the driver may read them without it, and other
  // threads with it.
  std::uint32_t mask_;
  std::unique_ptr<Entry[]> ring_;
  const std::uint64_t cookie_;
  std::uint32_t filled_ = 0;       // driver only
  bool solicited_filled_ = false;  // one of [tail_, filled_) is solicited
  std::mutex consumers_;
  alignas(64) std::atomic<std::uint32_t> head_ = 0;
  alignas(64) std::atomic<std::uint32_t> tail_ = 0;
  std::atomic<std::uint8_t> armed_ = kNot;
};

}  // namespace verbena::hca
