#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/error.h"
#include "ring/shared_memory.h"

// A ring carries records from one process to another through memory that both map.  There is one
// producer and one consumer.  Neither trusts the other: each side copies a number that the peer can
// write, then checks the copy, and only then uses it.  So a peer that writes invalid numbers ends
// the ring (kMalformed) and does no other harm.  The producer can change a record's content at any
// time: the consumer must copy the content first, and then check the copy.
//
//   producer                                     consumer
//   prepare(bytes): memory in the ring           peek(): the oldest record, in the ring
//   commit(bytes, kind): the record is visible   consume(): its memory may be used again
//   flush(): true: wake the consumer             finish(): true: wake the producer
//
// A record begins with a header word, which is zero until the record is complete.  So the consumer
// finds and reads a small record in one cache line, and the producer need not publish a position.
// The producer zeroes the next header before it publishes a record.  So the consumer never mistakes
// bytes of an earlier lap for a header.
//
// No call blocks.  A consumer that is about to sleep parks the ring.  Then flush() tells the
// producer of the next record to wake the consumer, such as by an eventfd.  A producer that finds
// the ring full can request to be woken.  If a side dies or stops between any two accesses, the
// ring contains only whole records.
//
// Threads: a Producer and a Consumer are each used by one thread at a time.
namespace verbena::ring {

// Control lies in shared memory beside the data.  Positions count bytes since the ring was created,
// and do not wrap.  Zeroed memory is an empty ring.
struct Control {
  // The consumer sets this position.  The bytes before the position are free.
  alignas(64) std::uint64_t head;
  // The consumer sets this to be woken for a record.  The producer clears it.
  alignas(64) std::uint32_t parked;
  // The producer sets this to be woken when the ring has free space.  The consumer clears it.
  std::uint32_t producer_waits;
};
static_assert(sizeof(Control) == 128);

inline constexpr std::size_t kRecordAlignment = 64;  // a cache line: two records never share one
inline constexpr std::size_t kHeaderBytes = sizeof(std::uint64_t);
inline constexpr std::size_t kRingBytesMin = 4 * kRecordAlignment;
inline constexpr std::size_t kRingBytesMax = std::size_t{1} << 30;

// Returns the number of bytes that a record takes in the ring, with header and padding.
constexpr std::size_t record_stride(std::size_t bytes) {
  return (kHeaderBytes + bytes + kRecordAlignment - 1) & ~(kRecordAlignment - 1);
}

// Returns the length of the longest record that a ring of `ring_bytes` accepts.  Such a record
// always fits in an empty ring.
constexpr std::size_t record_bytes_max(std::size_t ring_bytes) {
  return ring_bytes / 2 - kHeaderBytes;
}

struct Record {
  std::uint16_t kind{};                  // defined by the users of the ring
  std::span<const std::byte> payload{};  // in the ring, valid until consume()
};

namespace detail {

// A header word is 0 (no record yet), or contains the kind and length of a record, or is a mark
// that tells the consumer to skip the rest of the ring.  In the last two cases the upper 16 bits
// are one of these marks.
inline constexpr std::uint64_t kRecordMark = 0x5652;
inline constexpr std::uint64_t kSkipMark = 0x534b;

constexpr std::uint64_t header(std::size_t bytes, std::uint16_t kind) {
  return kRecordMark << 48 | std::uint64_t{kind} << 32 | static_cast<std::uint32_t>(bytes);
}

inline Result<void> check_memory(const Control* control, std::span<const std::byte> data) {
  if (control == nullptr || !std::has_single_bit(data.size()) || data.size() < kRingBytesMin ||
      data.size() > kRingBytesMax) {
    return fail(Errc::kInvalidArgument, "ring: the size must be a power of two, 256 to 2^30 bytes");
  }
  if (std::bit_cast<std::uintptr_t>(data.data()) % kRecordAlignment != 0 ||
      std::bit_cast<std::uintptr_t>(control) % alignof(Control) != 0) {
    return fail(Errc::kInvalidArgument, "ring: not aligned to 64 bytes");
  }
  return {};
}

inline std::uint64_t& word_at(std::span<std::byte> data, std::uint64_t position) {
  return *reinterpret_cast<std::uint64_t*>(data.data() + (position & (data.size() - 1)));
}

}  // namespace detail

// Implements the producer's side.  `Memory` is SharedMemory except in tests.
template <class Memory = SharedMemory>
class BasicProducer {
 public:
  // Attaches to a ring.  The position of a new ring is 0.  A process that takes over from another
  // producer continues at the position() of that producer.  kInvalidArgument: the memory has the
  // wrong size or alignment.  REQUIRES: the memory outlives the producer, and the consumer has
  // freed all bytes before `position`, because the new producer regards the whole ring as free.
  static Result<BasicProducer> attach(Control* control, std::span<std::byte> data,
                                      std::uint64_t position = 0) {
    VB_TRY_VOID(detail::check_memory(control, data));
    return BasicProducer(control, data, position);
  }

  // Returns memory for a record of up to `bytes`, or none if the ring has too little free space
  // now.  kMalformed: the consumer wrote an impossible position; all later calls of prepare() fail
  // as well.  REQUIRES: bytes <= record_bytes_max().
  Result<std::optional<std::span<std::byte>>> prepare(std::size_t bytes) {
    VB_CHECK(bytes <= record_bytes_max(data_.size()));
    if (ended_) return fail(Errc::kMalformed, "ring: invalid position of the consumer");
    const std::size_t skip_bytes = skip_before(bytes);
    const std::size_t needed_bytes = skip_bytes + record_stride(bytes);
    if (!has_space(needed_bytes)) {
      VB_TRY_VOID(read_head());
      if (!has_space(needed_bytes)) return std::optional<std::span<std::byte>>{};
    }
    if (skip_bytes != 0) publish(detail::kSkipMark << 48, skip_bytes);
    const std::size_t offset = tail_ & (data_.size() - 1);
    prepared_bytes_ = bytes;
    return std::optional(data_.subspan(offset + kHeaderBytes, bytes));
  }

  // Publishes the first `bytes` of the memory from prepare() as a record.  The consumer may see the
  // record at once, but a parked consumer sleeps until the caller wakes it after flush().
  void commit(std::size_t bytes, std::uint16_t kind) {
    VB_CHECK(bytes <= prepared_bytes_);
    publish(detail::header(bytes, kind), record_stride(bytes));
    prepared_bytes_ = 0;
    has_unflushed_records_ = true;
  }

  // Ends a batch of records.  Returns true if the consumer has parked the ring: notify the
  // consumer.
  bool flush() {
    if (!has_unflushed_records_) return false;
    has_unflushed_records_ = false;
    Memory::fence();
    return Memory::load_relaxed(control_->parked) != 0 &&
           Memory::exchange(control_->parked, 0U) != 0;
  }

  // Asks the consumer to wake the producer when the consumer has freed space.  Call this after
  // prepare() has returned none.  Returns true, and requests no wake, if the ring already has space
  // for a record of `bytes`.  The consumer does not know `bytes`, so the space that it frees may be
  // too small.  Then call this function again.  kMalformed: the consumer wrote an impossible
  // position.
  Result<bool> request_wake_for_space(std::size_t bytes) {
    Memory::store_relaxed(control_->producer_waits, 1U);
    Memory::fence();
    VB_TRY_VOID(read_head());
    if (!has_space(skip_before(bytes) + record_stride(bytes))) return false;
    Memory::exchange(control_->producer_waits, 0U);
    return true;
  }

  // Returns the number of bytes that were filled since the ring's creation.  The number includes
  // headers, padding and skipped bytes.
  std::uint64_t position() const { return tail_; }
  // Returns true if the consumer has freed all bytes before `position`.  kMalformed: the consumer
  // wrote an impossible position.
  Result<bool> has_consumed(std::uint64_t position) {
    if (head_ < position) VB_TRY_VOID(read_head());
    return head_ >= position;
  }
  // Returns the number of bytes in use, as far as the producer knows: the consumer may have freed
  // some of them since the producer last read the consumer's position.
  std::size_t used() const { return static_cast<std::size_t>(tail_ - head_); }

 private:
  BasicProducer(Control* control, std::span<std::byte> data, std::uint64_t position)
      : control_(control), data_(data), tail_(position), head_(position) {}

  // Returns the number of bytes up to the ring's end if the record does not fit there, else 0.
  std::size_t skip_before(std::size_t bytes) const {
    const std::size_t to_end = data_.size() - (tail_ & (data_.size() - 1));
    return to_end < record_stride(bytes) ? to_end : 0;
  }
  // Returns true if the ring has free space for these bytes and one more cache line, which the next
  // header needs.
  bool has_space(std::size_t bytes) const {
    return bytes + kRecordAlignment <= data_.size() - used();
  }

  Result<void> read_head() {
    const std::uint64_t head = Memory::load_acquire(control_->head);
    if (head < head_ || head > tail_) {
      ended_ = true;
      return fail(Errc::kMalformed, "ring: invalid position of the consumer");
    }
    head_ = head;
    return {};
  }

  void publish(std::uint64_t header, std::size_t stride) {
    Memory::store_relaxed(detail::word_at(data_, tail_ + stride), std::uint64_t{0});
    Memory::store_release(detail::word_at(data_, tail_), header);
    tail_ += stride;
  }

  Control* control_;
  std::span<std::byte> data_;
  std::uint64_t tail_;
  std::uint64_t head_;  // the consumer's position, as last read
  std::size_t prepared_bytes_ = 0;
  bool has_unflushed_records_ = false;
  bool ended_ = false;
};

// Implements the consumer's side.
template <class Memory = SharedMemory>
class BasicConsumer {
 public:
  // Attaches to a ring.  A process that takes over from another consumer continues at the
  // position() of that consumer.  kInvalidArgument: see BasicProducer::attach().  REQUIRES: the
  // memory outlives the consumer.
  static Result<BasicConsumer> attach(Control* control, std::span<std::byte> data,
                                      std::uint64_t position = 0) {
    VB_TRY_VOID(detail::check_memory(control, data));
    return BasicConsumer(control, data, position);
  }

  // Returns true if there is no record.  The call costs one load, for a consumer that polls.  After
  // false, peek() may still find none, because the producer has only skipped the ring's end.
  bool empty() const { return Memory::load_relaxed(detail::word_at(data_, head_)) == 0; }

  // Returns the oldest record, or none.  kMalformed: the header is not valid; all later calls of
  // peek() fail as well.
  Result<std::optional<Record>> peek() {
    if (ended_) return malformed();
    std::uint64_t header = Memory::load_acquire(detail::word_at(data_, head_));
    if (header == detail::kSkipMark << 48) {
      const std::size_t offset = head_ & (data_.size() - 1);
      if (offset == 0) return malformed();
      head_ += data_.size() - offset;
      header = Memory::load_acquire(detail::word_at(data_, head_));
    }
    if (header == 0) return std::optional<Record>{};
    const auto bytes = static_cast<std::uint32_t>(header);
    const std::size_t offset = head_ & (data_.size() - 1);
    if (header >> 48 != detail::kRecordMark || bytes > record_bytes_max(data_.size()) ||
        record_stride(bytes) > data_.size() - offset) {
      return malformed();
    }
    stride_ = record_stride(bytes);
    return std::optional(Record{static_cast<std::uint16_t>(header >> 32),
                                data_.subspan(offset + kHeaderBytes, bytes)});
  }

  // Frees the memory of the record that peek() returned.  REQUIRES: peek() returned a record.
  void consume() {
    VB_CHECK(stride_ != 0);
    head_ += stride_;
    stride_ = 0;
    // Publishes the position before the end of a long batch, so that a producer that found the ring
    // full can continue.
    if (head_ - published_head_ >= data_.size() / 4) publish_head();
  }

  // Ends a batch.  Call this after the last consume() of the batch.  Returns true if the producer
  // waits for free space: notify the producer.
  bool finish() {
    if (head_ != published_head_) publish_head();
    const bool wake = should_wake_producer_;
    should_wake_producer_ = false;
    return wake;
  }

  // Asks the producer to wake the consumer with its next record.  Returns false, and requests no
  // wake, if there is a record already.
  bool park() {
    Memory::store_relaxed(control_->parked, 1U);
    Memory::fence();
    if (Memory::load_acquire(detail::word_at(data_, head_)) == 0) return true;
    Memory::exchange(control_->parked, 0U);
    return false;
  }
  // Asks the producer not to wake the consumer, because the consumer polls.
  void unpark() { Memory::store_relaxed(control_->parked, 0U); }

  std::uint64_t position() const { return head_; }

 private:
  BasicConsumer(Control* control, std::span<std::byte> data, std::uint64_t position)
      : control_(control), data_(data), head_(position), published_head_(position) {}

  std::unexpected<Error> malformed() {
    ended_ = true;
    return fail(Errc::kMalformed, "ring: an invalid record");
  }

  void publish_head() {
    Memory::store_release(control_->head, head_);
    published_head_ = head_;
    Memory::fence();
    if (Memory::load_relaxed(control_->producer_waits) != 0 &&
        Memory::exchange(control_->producer_waits, 0U) != 0) {
      should_wake_producer_ = true;
    }
  }

  Control* control_;
  std::span<std::byte> data_;
  std::uint64_t head_;
  std::uint64_t published_head_;  // the value of head_ that the producer can see
  std::size_t stride_ = 0;        // the stride of the record that peek() returned, or 0
  bool should_wake_producer_ = false;
  bool ended_ = false;
};

using Producer = BasicProducer<>;
using Consumer = BasicConsumer<>;

}  // namespace verbena::ring
