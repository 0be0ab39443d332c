#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>

#include "base/error.h"
#include "hca/completion_queue.h"
#include "hca/types.h"

namespace verbena::hca {

// Limits the total length of a request's elements to 32 bits.  No valid message is longer.
constexpr std::uint32_t saturated_length(std::uint64_t bytes) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, 0xffffffff));
}

// The engine copies the data of a request of up to this many bytes at the post, as if it were
// inline.  Adapters read small requests early, so some programs overwrite the memory before the
// request completes.  A request that waits at a fence is not copied, because an earlier READ or
// atomic may still change its data.
inline constexpr std::uint32_t kCopiedBytesMax = 128;
// The engine sets this bit in SendWqe::flags if copied bytes follow the elements.  Programs cannot
// set the bit.
inline constexpr std::uint8_t kCopiedFlag = 1u << 7;

// Describes a posted send request.  Its elements follow in the slot.  The struct is small because
// thousands of queue pairs hold memory for their requests.
struct SendWqe {
  struct Remote {
    std::uint64_t address = 0;
    std::uint64_t compare_add = 0;  // for atomics
    std::uint64_t swap = 0;
  };

  SendWqe() : remote() {}

  std::uint64_t wr_id = 0;
  union {
    Remote remote;
    WindowBinding bind;  // kBindWindow
  };
  // The transport sets the next two members when it starts the request: the number of the first
  // packet (only RC), and the number of packets, which is 0 for a local request.
  std::uint64_t first_number = 0;
  std::uint32_t packets = 0;

  std::uint32_t length = 0;
  std::uint32_t r_key = 0;
  std::uint32_t immediate = 0;
  std::uint32_t key_generation = 0;  // Memory::generation() at the copy (kCopiedFlag)
  std::uint16_t sge_count = 0;       // 0 if the request is inline
  std::uint8_t flags = 0;
  WrOpcode opcode{};

  // Returns true if the bytes were copied when the request was posted; the program's memory is not
  // read again.
  bool is_copied() const { return (flags & (send_flag::kInline | kCopiedFlag)) != 0; }
};
static_assert(sizeof(SendWqe) <= 64);

// Holds the destination of a datagram.  In the slot, it follows the elements of the request.
struct DatagramTarget {
  link::Address address{};
  Qpn qpn{};
  Qkey qkey{};
};

struct RecvWqe {
  std::uint64_t wr_id = 0;
  std::uint32_t length = 0;
  std::uint32_t sge_count = 0;
};

// Holds the ring of one send or receive queue: any thread posts, the driver consumes.  A slot
// contains a Wqe, space for its elements (or inline bytes), and space for extra data of some QP
// types.  The constructor allocates all memory.
//
//                    head()              tail()
//                      v                   v
//   | free | completed | in progress       | free |
//
// head() and tail() only increase; request number n is in slot n & (capacity - 1).
//
// The slot of a completed request becomes free when the completion of this request, or of a later
// request of this queue, is polled (vol1 10.8.5.1).  So an unsignaled request keeps its slot until
// a later completion is polled.
//
// To post: lock mutex(), check has_room() and the QP's state (which changes only under both mutexes
// of the QP), fill the slots that prepare() returns, and call publish().  The driver reads
// [head, tail) without a lock.
template <class Wqe>
class WorkQueue {
 public:
  WorkQueue(std::uint32_t request_count, std::uint32_t element_bytes, std::uint32_t extra_bytes = 0)
      : capacity_(request_count == 0 ? 0 : std::bit_ceil(request_count)),
        extra_offset_(aligned(sizeof(Wqe) + element_bytes)),
        stride_(extra_offset_ + aligned(extra_bytes)),
        memory_(capacity_ == 0 ? nullptr
                               : static_cast<std::byte*>(::operator new (
                                     std::size_t{stride_} * capacity_, std::align_val_t{kAlign}))) {
  }

  std::uint32_t capacity() const { return capacity_; }
  // Returns the bytes in one slot for elements or inline data.
  std::size_t element_bytes() const { return extra_offset_ - sizeof(Wqe); }

  // ---- producers, under mutex() ----
  std::mutex& mutex() { return mutex_; }
  bool has_room(std::size_t requests) const { return requests <= free_slots(); }
  // Any thread may call this function without the mutex.  Then other posts may change the result.
  std::uint32_t free_slots() const {
    // Reads freed_ first, because a newer freed_ may be after an older tail_.  A newer tail_ may be
    // more than `capacity_` after an older freed_.
    const std::uint32_t freed = freed_.load(std::memory_order_acquire);
    const std::uint32_t used = tail_.load(std::memory_order_relaxed) - freed;
    return capacity_ - std::min(capacity_, used);
  }
  // Returns the number of the request that is posted after `skip` others.
  std::uint32_t next_number(std::uint32_t skip = 0) const {
    return tail_.load(std::memory_order_relaxed) + skip;
  }
  // Constructs the Wqe of such a request, and returns it.  The constructor of the queue does not do
  // this, so that an unused queue touches no pages.
  Wqe& prepare(std::uint32_t skip = 0) {
    return *::new (slot_address(next_number(skip) & (capacity_ - 1))) Wqe();
  }
  // Returns true if this request is not complete.  If it returns false, the caller also sees the
  // data that the request has brought.
  bool is_pending(std::uint32_t number) const {
    return number - head_.load(std::memory_order_acquire) < capacity_;
  }
  // Passes the requests in the next slots to the driver.
  void publish(std::uint32_t requests = 1) {
    tail_.store(next_number(requests), std::memory_order_release);
  }

  // ---- driver ----
  std::uint32_t head() const { return head_.load(std::memory_order_relaxed); }
  std::uint32_t tail() const { return tail_.load(std::memory_order_acquire); }
  bool empty() const { return head() == tail(); }
  std::uint32_t size() const { return tail() - head(); }
  Wqe& at(std::uint32_t number) { return slot(number); }
  // Removes the oldest request, and returns its slot.  If the request gets a completion, the caller
  // passes the slot to CompletionQueue::push().
  WqeSlot release() {
    head_.store(head() + 1, std::memory_order_release);
    return {&freed_, head()};
  }
  // Removes all requests.  REQUIRES: mutex() is locked, and all completions of the queue were
  // polled or removed.
  void clear() {
    head_.store(tail(), std::memory_order_release);
    freed_.store(tail(), std::memory_order_release);
  }

  // ---- producers and driver ----
  static std::span<const Sge> sges(const Wqe& wqe) {
    return {reinterpret_cast<const Sge*>(&wqe + 1), wqe.sge_count};
  }
  static Sge* sge_space(Wqe& wqe) { return reinterpret_cast<Sge*>(&wqe + 1); }
  // Returns the space for the bytes that are copied at the post.  It follows the elements.
  static std::byte* byte_space(Wqe& wqe) {
    return reinterpret_cast<std::byte*>(sge_space(wqe) + wqe.sge_count);
  }
  static const std::byte* copied_bytes(const Wqe& wqe) {
    return reinterpret_cast<const std::byte*>(sges(wqe).data() + wqe.sge_count);
  }
  // Returns the space for extra data, which follows the elements and copied bytes.  REQUIRES: the
  // queue was constructed with extra_bytes.
  std::byte* extra_space(Wqe& wqe) const {
    return reinterpret_cast<std::byte*>(&wqe) + extra_offset_;
  }
  template <class Extra>
  const Extra& extra(const Wqe& wqe) const {
    return *std::launder(
        reinterpret_cast<const Extra*>(reinterpret_cast<const std::byte*>(&wqe) + extra_offset_));
  }

 private:
  static constexpr std::size_t kAlign = 16;
  static constexpr std::uint32_t aligned(std::size_t bytes) {
    return static_cast<std::uint32_t>((bytes + kAlign - 1) / kAlign * kAlign);
  }

  struct AlignedDelete {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kAlign});
    }
  };

  std::byte* slot_address(std::uint32_t index) const {
    return memory_.get() + std::size_t{stride_} * index;
  }
  Wqe& slot(std::uint32_t number) {
    return *std::launder(reinterpret_cast<Wqe*>(slot_address(number & (capacity_ - 1))));
  }

  const std::uint32_t capacity_;  // a power of two, or 0
  const std::uint32_t extra_offset_;
  const std::uint32_t stride_;
  std::atomic<std::uint32_t> tail_ = 0;  // written under the mutex
  const std::unique_ptr<std::byte[], AlignedDelete> memory_;
  std::mutex mutex_;
  alignas(64) std::atomic<std::uint32_t> head_ = 0;
  std::atomic<std::uint32_t> freed_ = 0;  // the slots of requests before this number are free
};

using SendQueue = WorkQueue<SendWqe>;
using RecvQueue = WorkQueue<RecvWqe>;

}  // namespace verbena::hca
