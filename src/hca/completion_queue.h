#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "hca/list.h"
#include "hca/types.h"

namespace verbena::hca {

// A place in a work queue: what `freed` becomes when the completion of the request in it is polled.
struct WqeSlot {
  std::atomic<std::uint32_t>* freed = nullptr;
  std::uint32_t after = 0;
};

// A completion queue (vol1 10.8): a ring that the driver fills and any thread empties.
//
//   driver --push()--> [ | | | ] --poll()--> consumers, one at a time under the CQ's mutex
//
// What was pushed can be polled after publish(), which says whether the consumer waits for it.
//
// Arming (vol1 11.4.2.2).  The consumer arms and then polls; the driver adds and then looks whether
// somebody armed.  Both sides do these two steps in sequentially consistent order, so at least one
// of them sees what the other did: no completion falls between.
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

  // Driver.  False: the ring was full, the completion is lost, and an error is to be reported.
  bool push(const WorkCompletion& completion, WqeSlot slot, bool solicited);
  // Driver.  True: the consumer waits for what was pushed since the last time.
  bool publish();
  // Driver: takes out what a QP has left that is destroyed or reset.
  void forget(Qpn qpn);
  // Driver: at least so many entries from now on; what is in it stays.  False: more than that are.
  bool resize(std::uint32_t entries);

  // Driver's bookkeeping.
  std::uint32_t queue_pairs = 0;
  CqHandle handle{};
  bool notify_pending = false;
  bool error_pending = false;
  bool overflown = false;  // reported once
  ListLink<CompletionQueue> event_link{};
  ListLink<CompletionQueue> publish_link{};

 private:
  struct Entry {
    WorkCompletion completion{};
    WqeSlot slot{};
  };
  enum Armed : std::uint8_t { kNot, kSolicited, kAny };

  static std::uint32_t mask_for(std::uint32_t entries);

  // Change under the mutex, by the driver: so either is enough to read them.
  std::uint32_t mask_;
  std::unique_ptr<Entry[]> ring_;
  const std::uint64_t cookie_;
  std::uint32_t filled_ = 0;       // the driver's
  bool solicited_filled_ = false;  // one of [tail_, filled_) is solicited
  std::mutex consumers_;
  alignas(64) std::atomic<std::uint32_t> head_ = 0;
  alignas(64) std::atomic<std::uint32_t> tail_ = 0;
  std::atomic<std::uint8_t> armed_ = kNot;
};

}  // namespace verbena::hca
