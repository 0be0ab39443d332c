#pragma once

#include "stream/memory.h"

// Implements the end that writes to a direction.  memory.h describes the whole stream.
//
// How to write, with a sender's lock that all threads and processes of this end share:
//
//   lock
//   step = write(bytes)
//     kCopied  step.bytes are on their way; if step.wake, FUTEX_WAKE all at futex_word()
//     kTcp     n = send(socket, at most step.bytes, MSG_DONTWAIT), then wake = sent(n), where n is
//              0 after an error.  If TCP takes nothing now, unlock, and wait for POLLOUT or return
//              EAGAIN.
//              If the caller has more bytes elsewhere, they may go in the same call, up to
//              kTcpBytesMax in all
//     kFull    spin a little and write() again, or write_by_tcp() and continue as in kTcp
//     kPlain   unlock; make the program's call on the socket; report nothing
//   unlock
//
// A lock is never held while the thread sleeps.  Urgent data (MSG_OOB): leave() first.
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
  // The sender sends at most this many bytes by TCP before it looks for a promise again.
  static constexpr std::size_t kTcpBytesMax = 64 << 10;
  // The sender copies at most this many bytes into the ring before the receiver sees them.
  static constexpr std::size_t kCopyBytesMax = 32 << 10;

  // The memory outlives the sender.  A process that takes over from another one (after exec or
  // fork) continues with the state in the memory.
  explicit BasicSender(const Place& place) : d_(place.direction), ring_(place.ring) {}

  // Begins to use the ring.  `tcp_bytes` counts the bytes of this direction that TCP has accepted
  // since the connection began.  Call it once for an end, under the lock, when no send to the
  // socket is in progress in any process, and never again for the same memory (started()).
  void start(std::uint64_t tcp_bytes) {
    Memory::store_relaxed(d_->tcp_sent, tcp_bytes);
    Memory::store_release(d_->sender_started, 1U);
  }
  bool started() const { return Memory::load_acquire(d_->sender_started) != 0; }

  // Limits the unread data that write() leaves in the ring before it returns kFull.
  enum class Depth : std::uint8_t {
    kCached,  // kCachedBytes, which stay in the processor's cache: for a receiver that runs
    kWhole,   // the whole ring: for a receiver that waits for a processor
  };
  static constexpr std::size_t kCachedBytes = std::size_t{1} << 20;

  // Copies the first bytes into the ring, or tells what to do instead.  After kCopied, fewer bytes
  // than requested may have been copied: write the rest.  Hold the lock.  REQUIRES: bytes is not
  // empty, and an earlier step kTcp was reported to sent().  kMalformed: end the connection.
  Result<WriteStep> write(std::span<const std::byte> bytes, Depth depth = Depth::kWhole) {
    VB_CHECK(!bytes.empty());
    if (plain()) return WriteStep{};
    // The lock was taken before this; see idle_ring.h.
    std::uint64_t word = Memory::load_seq_cst(d_->state);
    if (!State(word).is_promised()) return by_tcp(bytes.size(), d_->wakes);
    const std::uint64_t tail = State(word).tail();
    const std::size_t used = VB_TRY(used_of(tail));
    const std::size_t limit =
        depth == Depth::kWhole ? ring_.size() : std::min(ring_.size(), kCachedBytes);
    if (used >= limit) return WriteStep{.kind = WriteStep::Kind::kFull};
    if (!in_ring()) {
      // A segment of the ring must leave room in the table for the TCP segment after it.
      if (VB_TRY(segments_free()) < 2) return by_tcp(bytes.size(), d_->overflows);
      open_segment(tail);
    }
    if (used == 0) rewind(tail);
    const std::size_t n = std::min({bytes.size(), limit - used, kCopyBytesMax});
    copy_in(tail, bytes.first(n));
    // Another thread of the receiver may change the flags meanwhile; only senders move the tail.
    while (State(word).is_promised()) {
      if (Memory::compare_exchange(d_->state, word, State(word).after_publishing(n))) {
        return WriteStep{WriteStep::Kind::kCopied, n, State(word).has_waiter()};
      }
      if (State(word).tail() != tail) return malformed(Fault::kTail, "stream: the tail has moved");
    }
    return by_tcp(bytes.size(), d_->wakes);
  }

  // Chooses TCP after write() has found the ring full.  Hold the lock.
  Result<WriteStep> write_by_tcp(std::size_t bytes) {
    if (plain()) return WriteStep{};
    return by_tcp(bytes, d_->overflows);
  }

  // Reports what TCP has accepted after a step kTcp, 0 if nothing.  Returns true if a receiver
  // waits: FUTEX_WAKE all at futex_word().  Hold the lock since the step.
  bool sent(std::size_t tcp_bytes) {
    const std::uint64_t before = Memory::load_relaxed(d_->tcp_sent);
    Memory::store_relaxed(d_->tcp_sent, before + tcp_bytes);
    Memory::store_release(d_->is_sending, 0U);
    return wake_needed();
  }

  // Returns true if a receiver waits at futex_word() and must be woken.  Call this after an event
  // that a receiver must see and that neither write() nor sent() reports, such as shutdown() or
  // close() of the socket.  No lock.
  bool wake_needed() {
    Memory::fence();
    if (!State(Memory::load_relaxed(d_->state)).has_waiter()) return false;
    return State(Memory::fetch_and(d_->state, ~State::kWaiting)).has_waiter();
  }

  // Returns true if write() would copy at least one byte into the ring now.  No lock.  A poll for
  // POLLOUT reports this or the kernel's answer.
  bool writable() const {
    const State state(Memory::load_acquire(d_->state));
    return !plain() && state.is_promised() && unread_at(state.tail()) < ring_.size();
  }

  // Returns how many bytes the receiver has not read from the ring yet.  No lock.  If they stay
  // unread for a millisecond, poll for POLLRDHUP: the promise of a killed receiver stays valid.
  std::size_t unread() const { return unread_at(State(Memory::load_acquire(d_->state)).tail()); }

  // Sets when the ring got its first unread byte, by a clock that the processes of the host share.
  // Call it under the lock before a write(), if nothing is unread.
  void set_ready_at(std::uint64_t time) { Memory::store_relaxed(d_->ready_at, time); }

  // Goes back to TCP for ever, at once: bytes in the ring can still be read, and all later bytes go
  // by TCP, whoever sends them.  Call it under the lock, before a writer that does not use this
  // class may write to the descriptor.  write() then returns kPlain in all processes of this end.
  // Returns true if a receiver waits: FUTEX_WAKE all at futex_word().  kMalformed: end the
  // connection.  REQUIRES: reason is not kNone.
  Result<bool> leave(Reason reason) {
    VB_CHECK(reason != Reason::kNone);
    if (plain()) return false;
    if (in_ring()) VB_TRY_VOID(open_tcp_segment());
    Memory::store_release(d_->sender_left, static_cast<std::uint32_t>(reason));
    return wake_needed();
  }

  // Returns true after leave().  No lock.
  bool has_left() const { return plain(); }

  // Checks the state after the lock's last owner died with it (EOWNERDEAD).  Hold the lock.
  // kMalformed with Fault::kOwnerDied: the owner died in a TCP call, so that nobody knows how many
  // bytes TCP has accepted.  End the connection then; otherwise continue.
  Result<void> recover() {
    if (Memory::load_relaxed(d_->is_sending) == 0 || plain()) return {};
    return malformed(Fault::kOwnerDied, "stream: a process died while it sent by TCP");
  }

  // Returns the word for FUTEX_WAKE.  It is shared between processes.
  std::uint32_t* futex_word() { return reinterpret_cast<std::uint32_t*>(&d_->state); }

 private:
  bool plain() const { return Memory::load_relaxed(d_->sender_left) != 0; }
  bool in_ring() const { return (Memory::load_relaxed(d_->newest_segment) & 1) != 0; }

  std::size_t unread_at(std::uint64_t tail) const {
    const std::uint64_t used = (tail - Memory::load_acquire(d_->head)) & kOffsetMask;
    return static_cast<std::size_t>(std::min<std::uint64_t>(used, ring_.size()));
  }
  Result<std::size_t> used_of(std::uint64_t tail) const {
    const std::uint64_t used = (tail - Memory::load_acquire(d_->head)) & kOffsetMask;
    if (used > ring_.size()) return malformed(Fault::kHead, "stream: the head is impossible");
    return static_cast<std::size_t>(used);
  }

  Result<std::size_t> segments_free() const {
    const std::uint32_t used =
        Memory::load_relaxed(d_->newest_segment) - Memory::load_acquire(d_->read_segment) + 1;
    if (used == 0 || used > Direction::kSegments) {
      return malformed(Fault::kTable, "stream: the receiver's segment is impossible");
    }
    return Direction::kSegments - used;
  }
  void open_segment(std::uint64_t tail) {
    const std::uint32_t next = Memory::load_relaxed(d_->newest_segment) + 1;
    const std::uint64_t start = offset_add(Memory::load_relaxed(d_->tcp_sent), tail);
    Memory::store_relaxed(d_->segment_starts[next % Direction::kSegments], start);
    if (next == 1) Memory::store_relaxed(d_->ring_start, start);
    Memory::store_release(d_->newest_segment, next);
  }
  Result<void> open_tcp_segment() {
    if (VB_TRY(segments_free()) == 0) return malformed(Fault::kTable, "stream: the table is full");
    open_segment(State(Memory::load_relaxed(d_->state)).tail());
    return {};
  }

  // Chooses TCP.  Increments `counter`, which counts one reason for TCP, if the last bytes went by
  // the ring.
  Result<WriteStep> by_tcp(std::size_t bytes, std::uint64_t& counter) {
    if (in_ring()) {
      VB_TRY_VOID(open_tcp_segment());
      Memory::store_relaxed(counter, Memory::load_relaxed(counter) + 1);
    }
    Memory::store_relaxed(d_->is_sending, 1U);
    return WriteStep{WriteStep::Kind::kTcp, std::min(bytes, kTcpBytesMax), false};
  }

  // Makes the next bytes begin at the ring's first byte, which is in the cache.
  void rewind(std::uint64_t tail) { Memory::store_relaxed(d_->base, std::uint64_t{0} - tail); }

  void copy_in(std::uint64_t position, std::span<const std::byte> bytes) {
    const std::uint64_t base = Memory::load_relaxed(d_->base);
    const std::size_t at = static_cast<std::size_t>(position + base) & (ring_.size() - 1);
    const std::size_t first = std::min(bytes.size(), ring_.size() - at);
    std::memcpy(ring_.data() + at, bytes.data(), first);
    if (first < bytes.size()) {
      std::memcpy(ring_.data(), bytes.data() + first, bytes.size() - first);
    }
  }

  Direction* d_;
  std::span<std::byte> ring_;
};

using Sender = BasicSender<>;

}  // namespace verbena::stream
