#pragma once

#include "stream/memory.h"

// Implements the end that writes to a direction.  memory.h describes the whole stream.
//
// How to write, with a sender's lock that all threads and processes of this end share:
//
//   lock
//   step = write(bytes)
//     kCopied  step.bytes bytes are in the ring; if step.wake, FUTEX_WAKE all at futex_word()
//     kTcp     n = send(socket, at most step.bytes, MSG_DONTWAIT), then wake = sent(n), where n is
//              0 after an error.  If TCP takes nothing now, unlock, and wait for POLLOUT or return
//              EAGAIN.
//              If the caller has more bytes elsewhere, they may go in the same call, up to
//              kTcpBytesMax in all
//     kFull    spin for a moment and write() again, or write_by_tcp() and continue as in kTcp
//     kPlain   unlock; make the program's call on the socket, without a call of sent()
//   unlock
//
// The caller must not sleep while it holds a lock.  For urgent data (MSG_OOB), call leave() first.
namespace verbena::stream {

struct WriteStep {
  enum class Kind : std::uint8_t { kCopied, kTcp, kFull, kPlain };
  Kind kind = Kind::kPlain;
  std::size_t bytes = 0;
  bool wake = false;  // kCopied: a receiver waits at futex_word()
};

template <class Memory = ring::SharedMemory>
class BasicSender {
 public:
  // The sender sends at most this many bytes by TCP before it checks for a promise again.
  static constexpr std::size_t kTcpBytesMax = 64 << 10;
  // The sender copies at most this many bytes into the ring before the receiver sees them.
  static constexpr std::size_t kCopyBytesMax = 32 << 10;

  // REQUIRES: the memory outlives the sender.  A process that takes over from another one (after
  // exec or fork) continues with the state in the memory.
  explicit BasicSender(const DirectionMemory& memory) : d_(memory.direction), ring_(memory.ring) {}

  // Begins to use the ring.  `tcp_bytes` counts the bytes of this direction that TCP has accepted
  // since the connection began.  Call it once for an end, under the lock, when no send to the
  // socket is in progress in any process, and never again for the same memory (has_started()).
  void start(std::uint64_t tcp_bytes) {
    Memory::store_relaxed(d_->tcp_sent, tcp_bytes);
    Memory::store_release(d_->sender_started, 1U);
  }
  bool has_started() const { return Memory::load_acquire(d_->sender_started) != 0; }

  // Limits the unread data that write() leaves in the ring before it returns kFull.
  enum class Depth : std::uint8_t {
    kCached,  // kCachedBytes, which stay in the processor's cache: for a receiver that is running
    kWhole,   // the whole ring: for a receiver that waits for CPU time
  };
  static constexpr std::size_t kCachedBytes = std::size_t{1} << 20;

  // Copies the first bytes into the ring, or returns what the caller must do instead.  After
  // kCopied, fewer bytes than requested may have been copied: write the rest.  Hold the lock.
  // REQUIRES: bytes is not empty, and an earlier step kTcp was reported to sent().  kMalformed: end
  // the connection.
  Result<WriteStep> write(std::span<const std::byte> bytes, Depth depth = Depth::kWhole) {
    VB_CHECK(!bytes.empty());
    if (uses_plain_tcp()) return WriteStep{};
    // The caller took the lock before this load; idle_ring.h needs that order.
    std::uint64_t word = Memory::load_seq_cst(d_->state);
    if (!State(word).is_promised()) return choose_tcp(bytes.size(), d_->wakes);
    const std::uint64_t tail = State(word).tail();
    const std::size_t used = VB_TRY(checked_unread(tail));
    const std::size_t limit =
        depth == Depth::kWhole ? ring_.size() : std::min(ring_.size(), kCachedBytes);
    if (used >= limit) return WriteStep{.kind = WriteStep::Kind::kFull};
    if (!is_ring_segment_open()) {
      // After a new segment of the ring, the table must have space for one more TCP segment.
      if (VB_TRY(free_segment_count()) < 2) return choose_tcp(bytes.size(), d_->overflows);
      open_segment(tail);
    }
    if (used == 0) rewind(tail);
    const std::size_t n = std::min({bytes.size(), limit - used, kCopyBytesMax});
    copy_in(tail, bytes.first(n));
    // During this loop a receiver may change the other bits of the state.  Only senders may move
    // the tail.
    while (State(word).is_promised()) {
      if (Memory::compare_exchange(d_->state, word, State(word).after_publishing(n))) {
        return WriteStep{WriteStep::Kind::kCopied, n, State(word).has_waiter()};
      }
      if (State(word).tail() != tail) return malformed(Fault::kTail, "stream: the tail has moved");
    }
    return choose_tcp(bytes.size(), d_->wakes);
  }

  // Chooses TCP after write() has returned kFull.  Hold the lock.
  Result<WriteStep> write_by_tcp(std::size_t bytes) {
    if (uses_plain_tcp()) return WriteStep{};
    return choose_tcp(bytes, d_->overflows);
  }

  // Reports how many bytes TCP has accepted after a step kTcp, which may be 0.  Returns true if a
  // receiver waits: FUTEX_WAKE all at futex_word().  REQUIRES: the caller has held the lock since
  // the step.
  bool sent(std::size_t tcp_bytes) {
    const std::uint64_t before = Memory::load_relaxed(d_->tcp_sent);
    Memory::store_relaxed(d_->tcp_sent, before + tcp_bytes);
    Memory::store_release(d_->is_sending, 0U);
    return wake_needed();
  }

  // Returns true if a receiver waits at futex_word() and must be woken.  Clears the mark of the
  // wait, so only one caller wakes the receiver.  Call this after an event that a receiver must
  // notice and that neither write() nor sent() reports, such as shutdown() or close() of the
  // socket.  Needs no lock.
  bool wake_needed() {
    Memory::fence();
    if (!State(Memory::load_relaxed(d_->state)).has_waiter()) return false;
    return State(Memory::fetch_and(d_->state, ~State::kWaiting)).has_waiter();
  }

  // Returns true if the receiver has promised to check the ring and the ring has space, so that
  // write() with Depth::kWhole would usually copy bytes now.  Needs no lock.  A poll for POLLOUT
  // reports this or the kernel's answer.
  bool is_writable() const {
    const State state(Memory::load_acquire(d_->state));
    return !uses_plain_tcp() && state.is_promised() && unread_at(state.tail()) < ring_.size();
  }

  // Returns how many bytes the receiver has not read from the ring yet.  Needs no lock.  If they
  // stay unread for a millisecond, poll for POLLRDHUP: the promise of a killed receiver remains.
  std::size_t unread() const { return unread_at(State(Memory::load_acquire(d_->state)).tail()); }

  // Sets the time at which the ring's first unread byte is sent, by a clock that the processes of
  // the host share.  Call it under the lock before a write(), if unread() is 0.
  void set_unread_since(std::uint64_t time) { Memory::store_relaxed(d_->unread_since, time); }

  // Goes back to TCP at once and permanently.  Bytes in the ring can still be read.  All later
  // bytes go by TCP, from all processes of this end.  Call it under the lock, before a writer that
  // does not use this class may write to the descriptor.  write() then returns kPlain.  Returns
  // true if a receiver waits: FUTEX_WAKE all at futex_word().  kMalformed: end the connection.
  // REQUIRES: reason is not kNone.
  Result<bool> leave(Reason reason) {
    VB_CHECK(reason != Reason::kNone);
    if (uses_plain_tcp()) return false;
    if (is_ring_segment_open()) VB_TRY_VOID(open_tcp_segment());
    Memory::store_release(d_->sender_leave_reason, static_cast<std::uint32_t>(reason));
    return wake_needed();
  }

  // Returns true after leave().  Needs no lock.
  bool has_left() const { return uses_plain_tcp(); }

  // Call this if the previous owner of the lock died while it held the lock.  Hold the lock.
  // kMalformed with Fault::kOwnerDied: the owner died in a TCP call, so the number of bytes that
  // TCP has accepted is unknown.  End the connection then; otherwise continue.
  Result<void> recover() {
    if (Memory::load_relaxed(d_->is_sending) == 0 || uses_plain_tcp()) return {};
    return malformed(Fault::kOwnerDied, "stream: a process died while it sent by TCP");
  }

  // Returns the word for FUTEX_WAKE.  Several processes use the word, so FUTEX_PRIVATE_FLAG must
  // not be set.
  std::uint32_t* futex_word() { return reinterpret_cast<std::uint32_t*>(&d_->state); }

 private:
  bool uses_plain_tcp() const { return Memory::load_relaxed(d_->sender_leave_reason) != 0; }
  bool is_ring_segment_open() const { return (Memory::load_relaxed(d_->newest_segment) & 1) != 0; }

  std::size_t unread_at(std::uint64_t tail) const {
    const std::uint64_t used = (tail - Memory::load_acquire(d_->head)) & kOffsetMask;
    return static_cast<std::size_t>(std::min<std::uint64_t>(used, ring_.size()));
  }
  Result<std::size_t> checked_unread(std::uint64_t tail) const {
    const std::uint64_t used = (tail - Memory::load_acquire(d_->head)) & kOffsetMask;
    if (used > ring_.size()) return malformed(Fault::kHead, "stream: invalid head");
    return static_cast<std::size_t>(used);
  }

  Result<std::size_t> free_segment_count() const {
    const std::uint32_t used =
        Memory::load_relaxed(d_->newest_segment) - Memory::load_acquire(d_->read_segment) + 1;
    if (used == 0 || used > Direction::kSegments) {
      return malformed(Fault::kTable, "stream: invalid segment of the receiver");
    }
    return Direction::kSegments - used;
  }
  void open_segment(std::uint64_t tail) {
    const std::uint32_t number = Memory::load_relaxed(d_->newest_segment) + 1;
    const std::uint64_t start = offset_add(Memory::load_relaxed(d_->tcp_sent), tail);
    Memory::store_relaxed(d_->segment_starts[number % Direction::kSegments], start);
    if (number == 1) Memory::store_relaxed(d_->ring_start, start);
    Memory::store_release(d_->newest_segment, number);
  }
  Result<void> open_tcp_segment() {
    if (VB_TRY(free_segment_count()) == 0) {
      return malformed(Fault::kTable, "stream: the table is full");
    }
    open_segment(State(Memory::load_relaxed(d_->state)).tail());
    return {};
  }

  // Chooses TCP.  If the last bytes went by the ring, increments `counter`, which is `wakes` or
  // `overflows`.
  Result<WriteStep> choose_tcp(std::size_t bytes, std::uint64_t& counter) {
    if (is_ring_segment_open()) {
      VB_TRY_VOID(open_tcp_segment());
      Memory::store_relaxed(counter, Memory::load_relaxed(counter) + 1);
    }
    Memory::store_relaxed(d_->is_sending, 1U);
    return WriteStep{WriteStep::Kind::kTcp, std::min(bytes, kTcpBytesMax), false};
  }

  // Makes the next bytes begin at the ring's first byte, which is probably in the cache.
  void rewind(std::uint64_t tail) { Memory::store_relaxed(d_->base, std::uint64_t{0} - tail); }

  void copy_in(std::uint64_t position, std::span<const std::byte> bytes) {
    const std::uint64_t base = Memory::load_relaxed(d_->base);
    const std::size_t at = static_cast<std::size_t>(position + base) & (ring_.size() - 1);
    const std::size_t bytes_to_end = std::min(bytes.size(), ring_.size() - at);
    std::memcpy(ring_.data() + at, bytes.data(), bytes_to_end);
    if (bytes_to_end < bytes.size()) {
      std::memcpy(ring_.data(), bytes.data() + bytes_to_end, bytes.size() - bytes_to_end);
    }
  }

  Direction* d_;
  std::span<std::byte> ring_;
};

using Sender = BasicSender<>;

}  // namespace verbena::stream
