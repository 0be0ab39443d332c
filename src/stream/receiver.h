#pragma once

#include <optional>
#include <utility>

#include "stream/memory.h"

// Implements the end that reads from a direction.  memory.h describes the whole stream.
//
// How to read, with a receiver's lock that all threads and processes of this end share:
//
//   lock
//   step = read(buffer)
//     kCopied  step.bytes were copied from the ring; continue with the rest of the buffer, and
//              return the bytes so far if the next step is kRingEmpty
//     kTcp     n = recv(socket, at most step.bytes, MSG_DONTWAIT), then received(n), where n is 0
//              after an error or an end of file; after an end of file call check_end().  Do not
//              read more than step.bytes, because bytes of later segments follow.  A blocking
//              caller that got EAGAIN unlocks, waits for POLLIN and begins again
//     kRingEmpty  TCP may have bytes, an end, an error, or nothing.  The caller has these choices:
//              - withdraw(step.tail); if false, read() again.  If true, unlock;
//                n = recv(socket, any number of bytes, with or without blocking);
//                received_while_withdrawn(n); promise().  An end of file is the end of the stream
//              - without withdraw(): queued = FIONREAD, allowed = begin_queued_read(queued), and
//                if allowed is not 0, continue as in kTcp with at most that many bytes
//              - if step.is_tcp_drained, TCP has no bytes, but perhaps an end: a caller that does
//                not block may return EAGAIN without a system call, unless the kernel has reported
//                an event since the last recv() that failed with EAGAIN
//     kPlain   unlock; make the program's call on the socket, without a call of received()
//   unlock
//
// How to wait in poll, select or epoll, without a lock: get the ring_status() of each socket; if no
// ring has bytes, withdraw(tail) for each; if all succeed, sleep; then promise() for each.  If one
// withdraw() fails, call promise() for those that succeeded, and begin again.  A waiter that does
// not check a socket for a long time need not call promise(): the bytes then come by TCP and wake
// the waiter.  An edge-triggered report is due when the tail has changed since the last report.
//
// How to block without TCP, without a lock: prepare_futex_wait(tail), then poll the socket once
// without waiting, then FUTEX_WAIT for the returned value at futex_word().  The kernel does not end
// this wait when the peer resets the connection or is killed.  So the wait needs a timeout, or
// another thread that watches the connection.
//
// A process that ends or calls exec() should first call promise() for each of its withdrawals.  The
// withdrawals of a killed process, and of other threads that exec() or exit() ends, remain.  Then
// the direction stays on TCP.
//
// The caller must not sleep while it holds a lock.  All readers of this end follow these rules: a
// reader that sleeps in the kernel without withdraw() may sleep for ever.
namespace verbena::stream {

struct ReadStep {
  enum class Kind : std::uint8_t { kCopied, kTcp, kRingEmpty, kPlain };
  Kind kind = Kind::kPlain;
  std::size_t bytes = 0;        // kCopied, kTcp: how many bytes
  std::uint64_t tail = 0;       // kRingEmpty: for withdraw() or prepare_futex_wait()
  bool is_tcp_drained = false;  // kRingEmpty: all bytes that were sent by TCP have been read
};

template <class Memory = ring::SharedMemory>
class BasicReceiver {
 public:
  // The receiver frees the ring's space after each copy of at most this many bytes.
  static constexpr std::size_t kCopyBytesMax = 32 << 10;

  struct RingStatus {
    std::size_t bytes = 0;   // bytes that can be read from the ring now
    std::uint64_t tail = 0;  // for withdraw(), prepare_futex_wait(), and to notice new bytes
  };
  enum class LeaveResult : std::uint8_t {
    kPlain,   // all bytes come by TCP from now on
    kUnread,  // the ring has unread bytes, so leave() has changed nothing
  };

  // REQUIRES: the memory outlives the receiver.  A process that takes over from another one (after
  // exec or fork) continues with the state in the memory.
  explicit BasicReceiver(const DirectionMemory& memory)
      : d_(memory.direction), ring_(memory.ring) {}

  // Begins to use the ring.  `tcp_bytes` counts the bytes of this direction that were read from TCP
  // since the connection began.  `sleepers` counts the calls of this end (recv, poll) that began
  // before the ring was used and may sleep in the kernel now.  Each of them calls promise() later,
  // and before that received_while_withdrawn() if it has received bytes.  Call start() once for an
  // end, under the lock, and never again for the same memory (has_started()).
  void start(std::uint64_t tcp_bytes, std::uint32_t sleepers) {
    VB_CHECK(sleepers <= State::kSleepersMask);
    Memory::store_relaxed(d_->tcp_received, tcp_bytes);
    Memory::store_release(d_->receiver_started, 1U);
    Memory::fetch_add(d_->state, State::kOpen + sleepers);
  }
  bool has_started() const { return Memory::load_acquire(d_->receiver_started) != 0; }

  // Reads bytes from the ring, or returns what the caller must do instead.  With `peek`, the bytes
  // stay in the ring (MSG_PEEK); then read TCP with MSG_PEEK as well, and call received(0).  Hold
  // the lock.  REQUIRES: buffer is not empty, and an earlier step kTcp was reported to received().
  // kMalformed: end the connection.
  Result<ReadStep> read(std::span<std::byte> buffer, bool peek = false) {
    VB_CHECK(!buffer.empty());
    if (uses_plain_tcp()) return ReadStep{};
    // The tail is loaded before the table, so the table has the segments of all bytes before that
    // tail.  The table may also describe bytes that came later; the second attempt finds them.
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::uint64_t tail = State(Memory::load_acquire(d_->state)).tail();
      const std::size_t used = VB_TRY(checked_unread(tail));
      const Segment segment = VB_TRY(advance());
      if (!segment.is_in_ring) {
        if (segment.has_end)
          return begin_tcp_read(std::min<std::uint64_t>(segment.remaining, buffer.size()));
        if (used != 0)
          return malformed(Fault::kTable, "stream: the ring has bytes without a segment");
        return ReadStep{.kind = ReadStep::Kind::kRingEmpty, .tail = tail};
      }
      if (segment.has_end && segment.remaining > used) continue;
      const auto n = static_cast<std::size_t>(
          std::min<std::uint64_t>(segment.has_end ? segment.remaining : used, buffer.size()));
      if (n == 0) {
        return ReadStep{.kind = ReadStep::Kind::kRingEmpty, .tail = tail, .is_tcp_drained = true};
      }
      copy_out(buffer.first(n), peek);
      return ReadStep{.kind = ReadStep::Kind::kCopied, .bytes = n};
    }
    return malformed(Fault::kTable, "stream: a segment is longer than the ring's bytes");
  }

  // Works as read() with `peek`, but begins after the bytes that the caller has peeked at already:
  // `tcp_bytes` from TCP and `ring_bytes` from the ring.  Do not call received() after kTcp.  Hold
  // the lock.
  Result<ReadStep> peek_beyond(std::span<std::byte> buffer, std::size_t tcp_bytes,
                               std::size_t ring_bytes) const {
    VB_CHECK(!buffer.empty());
    if (uses_plain_tcp()) return ReadStep{};
    const std::uint64_t tail = State(Memory::load_acquire(d_->state)).tail();
    const std::size_t used = VB_TRY(checked_unread(tail));
    const std::uint64_t offset = offset_add(next_offset(), tcp_bytes + ring_bytes);
    const Segment segment = VB_TRY(segment_at(offset)).second;
    if (!segment.is_in_ring) {
      if (!segment.has_end) return ReadStep{.kind = ReadStep::Kind::kRingEmpty, .tail = tail};
      return ReadStep{.kind = ReadStep::Kind::kTcp,
                      .bytes = static_cast<std::size_t>(
                          std::min<std::uint64_t>(segment.remaining, buffer.size()))};
    }
    const std::size_t available = used - std::min(used, ring_bytes);
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(
        std::min(available, buffer.size()), segment.has_end ? segment.remaining : available));
    if (n == 0)
      return ReadStep{.kind = ReadStep::Kind::kRingEmpty, .tail = tail, .is_tcp_drained = true};
    return ReadStep{.kind = ReadStep::Kind::kCopied,
                    .bytes = copy_piece(offset_add(Memory::load_relaxed(d_->head), ring_bytes),
                                        buffer.first(n))};
  }

  // Reports how many bytes recv() returned after a step kTcp, 0 for none.  REQUIRES: the caller has
  // held the lock since the step.
  void received(std::size_t tcp_bytes) {
    count_received(tcp_bytes);
    Memory::store_release(d_->is_receiving, 0U);
  }
  // Returns true if an end of file after a step kTcp is the end of the stream.  Returns false if
  // the ring has unread bytes: then read() again.  Call it after received(0).  REQUIRES: the caller
  // has held the lock since the step.  kMalformed: TCP ended before it carried all bytes that the
  // table assigns to TCP; end the connection.
  Result<bool> check_end() {
    const State state(Memory::load_acquire(d_->state));
    const std::size_t used = VB_TRY(checked_unread(state.tail()));
    const Segment segment = VB_TRY(advance());
    // If the ring is empty, a reader that has withdrawn the promise may have read the bytes from
    // TCP, and reports them later.
    if (!segment.is_in_ring && segment.has_end && (used != 0 || state.sleepers() == 0)) {
      return malformed(Fault::kEarlyEnd, "stream: TCP ended before its segment");
    }
    return used == 0;
  }

  // Begins to read bytes that the kernel has queued (FIONREAD) after a step kRingEmpty.  Returns
  // how many of the `queued` bytes the caller may read now, as in a step kTcp; 0: read() again.
  // REQUIRES: the caller has held the lock since the step.
  Result<std::size_t> begin_queued_read(std::size_t queued) {
    const std::uint64_t tail = State(Memory::load_acquire(d_->state)).tail();
    const Segment segment = VB_TRY(advance());
    if (queued == 0 || segment.is_in_ring || segment.has_end || VB_TRY(checked_unread(tail)) != 0)
      return 0U;
    Memory::store_relaxed(d_->is_receiving, 1U);
    return queued;
  }

  // Reports how many bytes recv() returned between withdraw() and promise().  Needs no lock.
  void received_while_withdrawn(std::size_t tcp_bytes) { count_received(tcp_bytes); }

  // Returns the state of the ring.  Needs no lock.  Invalid values count as bytes, and read()
  // reports them.
  RingStatus ring_status() const {
    const std::uint64_t tail = State(Memory::load_acquire(d_->state)).tail();
    const std::uint64_t used = (tail - Memory::load_acquire(d_->head)) & kOffsetMask;
    return {static_cast<std::size_t>(std::min<std::uint64_t>(used, ring_.size())), tail};
  }

  // Returns the time that the sender has set by set_unread_since().  Needs no lock.
  std::uint64_t unread_since() const { return Memory::load_relaxed(d_->unread_since); }

  // Announces that the caller may sleep in the kernel.  Returns false if the ring's tail is not
  // `tail` any more: do not sleep.  After true, all later bytes come by TCP, until the caller and
  // all other sleepers have called promise().  Needs no lock.  kMalformed: there are 8,191 sleepers
  // already.
  Result<bool> withdraw(std::uint64_t tail) {
    std::uint64_t word = Memory::load_acquire(d_->state);
    while (State(word).tail() == tail) {
      if (State(word).sleepers() == State::kSleepersMask) {
        return malformed(Fault::kSleepers, "stream: too many sleepers");
      }
      if (Memory::compare_exchange(d_->state, word, word + 1)) return true;
    }
    return false;
  }

  // Ends one withdraw(): promises that the caller checks the ring before it sleeps again.  Needs no
  // lock.
  void promise() {
    std::uint64_t word = Memory::load_relaxed(d_->state);
    while (State(word).sleepers() != 0 && !Memory::compare_exchange(d_->state, word, word - 1)) {
    }
  }

  // Announces that the caller will wait at futex_word().  Returns the value for FUTEX_WAIT.
  // Returns nothing if the ring's tail is not `tail` any more.  Also returns nothing if the sender
  // has gone back to TCP, because it would not wake the caller: then call withdraw().  The promise
  // stays valid during the wait.  Needs no lock.
  std::optional<std::uint32_t> prepare_futex_wait(std::uint64_t tail) {
    std::uint64_t word = Memory::load_acquire(d_->state);
    while (State(word).tail() == tail) {
      const std::uint64_t waiting = word | State::kWaiting;
      if (Memory::compare_exchange(d_->state, word, waiting)) {
        if (Memory::load_acquire(d_->sender_leave_reason) != 0) break;
        return static_cast<std::uint32_t>(waiting);
      }
    }
    return std::nullopt;
  }
  // Returns the word for FUTEX_WAIT.  Several processes use the word, so FUTEX_PRIVATE_FLAG must
  // not be set.
  std::uint32_t* futex_word() { return reinterpret_cast<std::uint32_t*>(&d_->state); }

  // Goes back to TCP permanently if the ring is empty.  Call it under the lock, before a reader
  // that does not use this class may read from the descriptor.  kUnread: the unread bytes must
  // first be read through this class (ARCHITECTURE.md, "Going back to TCP").  After kPlain the ring
  // is not used again; read() returns kPlain in all processes of this end.  REQUIRES: reason is not
  // kNone.
  Result<LeaveResult> leave(Reason reason) {
    VB_CHECK(reason != Reason::kNone);
    if (uses_plain_tcp()) return LeaveResult::kPlain;
    std::uint64_t word = Memory::load_acquire(d_->state);
    do {
      if (VB_TRY(checked_unread(State(word).tail())) != 0) return LeaveResult::kUnread;
    } while (!Memory::compare_exchange(d_->state, word, word & ~State::kOpen));
    Memory::store_release(d_->receiver_leave_reason, static_cast<std::uint32_t>(reason));
    return LeaveResult::kPlain;
  }

  // Returns true after leave().  Needs no lock.
  bool has_left() const { return uses_plain_tcp(); }

  // Returns true after the sender's start().  Needs no lock.
  bool sender_has_started() const { return Memory::load_acquire(d_->sender_started) != 0; }

  // Returns the sender's reason for leave(), or kNone.  After the sender's leave(), no bytes enter
  // the ring.  Needs no lock.
  Reason sender_leave_reason() const {
    return reason_of(Memory::load_acquire(d_->sender_leave_reason));
  }

  // Call this if the previous owner of the lock died while it held the lock.  Hold the lock.
  // kMalformed with Fault::kOwnerDied: the owner died in a TCP call, so the number of bytes that
  // the owner has read is unknown.  End the connection then; otherwise continue.
  Result<void> recover() {
    if (Memory::load_relaxed(d_->is_receiving) == 0 || uses_plain_tcp()) return {};
    return malformed(Fault::kOwnerDied, "stream: a process died while it read from TCP");
  }

 private:
  struct Segment {
    bool is_in_ring = false;
    bool has_end = false;         // the table has a later segment
    std::uint64_t remaining = 0;  // bytes up to the later segment, if it is known
  };

  bool uses_plain_tcp() const { return Memory::load_relaxed(d_->receiver_leave_reason) != 0; }

  Result<std::size_t> checked_unread(std::uint64_t tail) const {
    const std::uint64_t used = (tail - Memory::load_relaxed(d_->head)) & kOffsetMask;
    if (used > ring_.size()) return malformed(Fault::kTail, "stream: invalid tail");
    return static_cast<std::size_t>(used);
  }

  // Returns the offset of the next byte.
  std::uint64_t next_offset() const {
    return offset_add(Memory::load_relaxed(d_->tcp_received), Memory::load_relaxed(d_->head));
  }

  // Finds the segment of the next byte, and updates read_segment.
  Result<Segment> advance() {
    const std::uint64_t offset = next_offset();
    const std::uint32_t before = Memory::load_relaxed(d_->read_segment);
    const auto [number, segment] = VB_TRY(segment_at(offset));
    if (number != before) {
      if ((number & 1) != 0 && start_of(number) != offset) {
        return malformed(Fault::kOverrun, "stream: TCP carried bytes of the ring");
      }
      Memory::store_release(d_->read_segment, number);
    }
    return segment;
  }
  // Finds the segment of a byte that is not read yet.  Returns the segment's number and the
  // segment.
  Result<std::pair<std::uint32_t, Segment>> segment_at(std::uint64_t offset) const {
    const std::uint32_t newest = Memory::load_acquire(d_->newest_segment);
    std::uint32_t number = Memory::load_relaxed(d_->read_segment);
    if (newest - number >= Direction::kSegments) {
      return malformed(Fault::kTable, "stream: the table of segments is too long");
    }
    std::int64_t remaining = 0;
    while (number != newest) {
      remaining = offset_distance(offset, start_of(number + 1));
      if (remaining > 0) break;
      ++number;
    }
    return std::pair(number, Segment{.is_in_ring = (number & 1) != 0,
                                     .has_end = number != newest,
                                     .remaining = static_cast<std::uint64_t>(remaining)});
  }
  std::uint64_t start_of(std::uint32_t segment) const {
    return Memory::load_relaxed(d_->segment_starts[segment % Direction::kSegments]) & kOffsetMask;
  }

  ReadStep begin_tcp_read(std::uint64_t bytes) {
    Memory::store_relaxed(d_->is_receiving, 1U);
    return {.kind = ReadStep::Kind::kTcp, .bytes = static_cast<std::size_t>(bytes)};
  }
  void count_received(std::size_t bytes) {
    Memory::fetch_add(d_->tcp_received, std::uint64_t{bytes});
  }

  // Copies bytes out of the ring.  Frees their space piece by piece, so that the sender can
  // continue during a long copy.
  void copy_out(std::span<std::byte> buffer, bool peek) {
    std::uint64_t position = Memory::load_relaxed(d_->head);
    while (!buffer.empty()) {
      const std::size_t n = copy_piece(position, buffer);
      buffer = buffer.subspan(n);
      position = offset_add(position, n);
      if (!peek) Memory::store_release(d_->head, position);
    }
  }
  // Copies the first bytes, at most kCopyBytesMax, and only up to the end of the ring's memory.
  // Returns the number of copied bytes.
  std::size_t copy_piece(std::uint64_t position, std::span<std::byte> buffer) const {
    const std::uint64_t base = Memory::load_relaxed(d_->base);
    const std::size_t at = static_cast<std::size_t>(position + base) & (ring_.size() - 1);
    const std::size_t n = std::min({buffer.size(), ring_.size() - at, kCopyBytesMax});
    std::memcpy(buffer.data(), ring_.data() + at, n);
    return n;
  }

  Direction* d_;
  std::span<std::byte> ring_;
};

using Receiver = BasicReceiver<>;

}  // namespace verbena::stream
