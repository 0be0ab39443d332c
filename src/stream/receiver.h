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
//     kCopied  step.bytes were copied from the ring; go on with the rest of the buffer, and
//              return the bytes so far if the next step is kOpen
//     kTcp     n = recv(socket, at most step.bytes, MSG_DONTWAIT), then received(n), where n is 0
//              after an error or an end of file; after an end of file ask ended().  Bytes of a
//              later segment are behind these, so never read more.  A blocking caller that got
//              EAGAIN unlocks, waits for POLLIN and begins again
//     kOpen    the ring is empty.  TCP may have bytes, an end, an error, or nothing:
//              - withdraw(step.seen); if false, read() again.  If true, unlock;
//                n = recv(socket, any number, and it may block); received_open(n); promise().
//                An end of file is the end of the stream
//              - or, without withdrawing: queued = FIONREAD, bound = queued_bound(queued), and if
//                bound is not 0, continue as in kTcp with at most bound bytes
//              - if step.only_end, TCP has at most an end: a caller that does not block may return
//                EAGAIN without a system call, unless the kernel has reported an event since the
//                last recv() that gave EAGAIN
//     kPlain   unlock; make the program's call on the socket; report nothing
//   unlock
//
// How to wait in poll, select or epoll, without a lock: look() at each socket; if no ring has
// bytes, withdraw(look.seen) for each; if all succeed, sleep; then promise() for each.  If one
// withdraw() fails, promise() for those that succeeded, and look again.  A waiter that does not
// look at a socket for a long time keeps its withdrawal, which costs nothing: the bytes then come
// by TCP and wake the waiter.  An edge-triggered report is due when look.seen has changed since the
// last report.
//
// How to block without TCP, without a lock: wait_value(seen), then poll the socket once without
// waiting, then FUTEX_WAIT for that value at futex_word().  The kernel does not end this wait when
// the peer resets the connection or is killed.  So the wait needs a limit, or another thread that
// watches for this.
//
// A process that ends or calls exec() first calls promise() for each of its withdrawals.  The
// withdrawals of a killed process stand, and the direction stays on TCP.
//
// A lock is never held while the thread sleeps.  All readers of this end follow these rules: a
// reader that sleeps in the kernel without withdraw() may sleep for ever.
namespace verbena::stream {

struct ReadStep {
  enum class Kind : std::uint8_t { kCopied, kTcp, kOpen, kPlain };
  Kind kind = Kind::kPlain;
  std::size_t bytes = 0;   // kCopied, kTcp: how many bytes
  std::uint64_t tail = 0;  // kOpen: for withdraw() or wait_value()
  bool only_end = false;   // kOpen: all bytes that were sent by TCP have been read
};

template <class Memory = ring::SharedMemory>
class BasicReceiver {
 public:
  // A copy frees the ring for the sender in pieces of this size.
  static constexpr std::size_t kCopyBytesMax = 32 << 10;

  struct Look {
    std::size_t bytes = 0;   // bytes that can be read from the ring now
    std::uint64_t tail = 0;  // for withdraw(), wait_value(), and to notice new bytes
  };
  enum class LeaveResult : std::uint8_t {
    kPlain,   // all bytes come by TCP from now on
    kUnread,  // bytes lie in the ring: nothing has changed
  };

  // The memory outlives the receiver.  A process that takes over from another one (after exec or
  // fork) continues with the state in the memory.
  explicit BasicReceiver(const Place& place) : d_(place.direction), ring_(place.ring) {}

  // Begins to use the ring.  `tcp_bytes` counts the bytes of this direction that were read from TCP
  // since the connection began.  `sleepers` counts calls of this end that may be in the kernel now
  // and know nothing of the ring (recv, poll); each reports received_open() and promise() later.
  // Call it once for an end, under the lock, and never again for the same memory (started()).
  void start(std::uint64_t tcp_bytes, std::uint32_t sleepers) {
    VB_CHECK(sleepers <= State::kSleepersMask);
    Memory::store_relaxed(d_->tcp_received, tcp_bytes);
    Memory::store_release(d_->receiver_started, 1U);
    Memory::fetch_add(d_->state, State::kOpen + sleepers);
  }
  bool started() const { return Memory::load_acquire(d_->receiver_started) != 0; }

  // Takes bytes from the ring, or tells what to do instead.  With `peek`, the bytes stay in the
  // ring (MSG_PEEK); then read TCP with MSG_PEEK as well, and report 0.  Hold the lock.  REQUIRES:
  // buffer is not empty, and an earlier step kTcp was reported to received().  kMalformed: end the
  // connection.
  Result<ReadStep> read(std::span<std::byte> buffer, bool peek = false) {
    VB_CHECK(!buffer.empty());
    if (plain()) return ReadStep{};
    // The tail is loaded before the table, so the table has the segments of all bytes before that
    // tail.  The table may also name bytes that came later; the second look finds these.
    for (int look = 0; look < 2; ++look) {
      const std::uint64_t tail = State(Memory::load_acquire(d_->state)).tail();
      const std::size_t used = VB_TRY(used_of(tail));
      const Segment segment = VB_TRY(advance());
      if (!segment.in_ring) {
        if (segment.ends) return by_tcp(std::min<std::uint64_t>(segment.rest, buffer.size()));
        if (used != 0) return malformed(Fault::kTable, "stream: bytes in the ring, no segment");
        return ReadStep{.kind = ReadStep::Kind::kOpen, .tail = tail};
      }
      if (segment.ends && segment.rest > used) continue;
      const auto n = static_cast<std::size_t>(
          std::min<std::uint64_t>(segment.ends ? segment.rest : used, buffer.size()));
      if (n == 0) {
        return ReadStep{.kind = ReadStep::Kind::kOpen, .tail = tail, .only_end = true};
      }
      copy_out(buffer.first(n), peek);
      return ReadStep{.kind = ReadStep::Kind::kCopied, .bytes = n};
    }
    return malformed(Fault::kTable, "stream: a segment is longer than the ring's bytes");
  }

  // Does the same as read() with `peek`, behind the bytes that the caller has peeked at already:
  // `tcp_bytes` from TCP and `ring_bytes` from the ring.  Report nothing after kTcp.  Hold the
  // lock.
  Result<ReadStep> peek_beyond(std::span<std::byte> buffer, std::size_t tcp_bytes,
                               std::size_t ring_bytes) const {
    VB_CHECK(!buffer.empty());
    if (plain()) return ReadStep{};
    const std::uint64_t tail = State(Memory::load_acquire(d_->state)).tail();
    const std::size_t used = VB_TRY(used_of(tail));
    const std::uint64_t offset = offset_add(next_offset(), tcp_bytes + ring_bytes);
    const Segment segment = VB_TRY(segment_at(offset)).second;
    if (!segment.in_ring) {
      if (!segment.ends) return ReadStep{.kind = ReadStep::Kind::kOpen, .tail = tail};
      return ReadStep{
          .kind = ReadStep::Kind::kTcp,
          .bytes = static_cast<std::size_t>(std::min<std::uint64_t>(segment.rest, buffer.size()))};
    }
    const std::size_t available = used - std::min(used, ring_bytes);
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(
        std::min(available, buffer.size()), segment.ends ? segment.rest : available));
    if (n == 0) return ReadStep{.kind = ReadStep::Kind::kOpen, .tail = tail, .only_end = true};
    return ReadStep{.kind = ReadStep::Kind::kCopied,
                    .bytes = copy_piece(offset_add(Memory::load_relaxed(d_->head), ring_bytes),
                                        buffer.first(n))};
  }

  // Reports what recv() gave after a step kTcp, 0 if nothing.  Hold the lock since the step.
  void received(std::size_t tcp_bytes) {
    count_received(tcp_bytes);
    Memory::store_release(d_->is_receiving, 0U);
  }
  // Returns true if an end of file after a step kTcp is the end of the stream.  Returns false if
  // bytes lie in the ring: then read() again.  Call it after received(0).  Hold the lock since the
  // step.  kMalformed: TCP ended before it carried all bytes that the table names; end the
  // connection.
  Result<bool> ended() {
    const State state(Memory::load_acquire(d_->state));
    const std::size_t used = VB_TRY(used_of(state.tail()));
    const Segment segment = VB_TRY(advance());
    // If the ring is empty, a reader that has withdrawn the promise may have read the bytes from
    // TCP, and reports them later.
    if (!segment.in_ring && segment.ends && (used != 0 || state.sleepers() == 0)) {
      return malformed(Fault::kEarlyEnd, "stream: TCP ended before its segment");
    }
    return used == 0;
  }

  // Returns how many of the `queued` bytes that FIONREAD reported after a step kOpen may be read
  // now, as in a step kTcp; 0: read() again.  Hold the lock since the step.
  Result<std::size_t> queued_bound(std::size_t queued) {
    const std::uint64_t tail = State(Memory::load_acquire(d_->state)).tail();
    const Segment segment = VB_TRY(advance());
    if (queued == 0 || segment.in_ring || segment.ends || VB_TRY(used_of(tail)) != 0) return 0U;
    Memory::store_relaxed(d_->is_receiving, 1U);
    return queued;
  }

  // Reports what recv() gave between withdraw() and promise().  No lock.
  void received_open(std::size_t tcp_bytes) { count_received(tcp_bytes); }

  // Looks at the ring.  No lock.  Invalid values count as bytes, and read() reports them.
  Look look() const {
    const std::uint64_t tail = State(Memory::load_acquire(d_->state)).tail();
    const std::uint64_t used = (tail - Memory::load_acquire(d_->head)) & kOffsetMask;
    return {static_cast<std::size_t>(std::min<std::uint64_t>(used, ring_.size())), tail};
  }

  // Returns when the ring got its first unread byte, as the sender claims (set_ready_at()).  No
  // lock.
  std::uint64_t ready_at() const { return Memory::load_relaxed(d_->ready_at); }

  // Announces that the caller may sleep in the kernel.  Returns false if bytes have come into the
  // ring since `tail`: do not sleep.  After true, all later bytes come by TCP, until the caller and
  // all other sleepers have called promise().  No lock.  kMalformed: more than 8,191 sleepers.
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

  // Ends one withdraw(): promises that the caller looks at the ring before it sleeps again.  No
  // lock.
  void promise() {
    std::uint64_t word = Memory::load_relaxed(d_->state);
    while (State(word).sleepers() != 0 && !Memory::compare_exchange(d_->state, word, word - 1)) {
    }
  }

  // Announces that the caller will wait at futex_word().  Returns the value for FUTEX_WAIT.
  // Returns nothing if bytes have come since `tail`, or if the sender has left, so that nobody
  // would wake the caller: then call withdraw().  The promise stays valid during the wait.  No
  // lock.
  std::optional<std::uint32_t> wait_value(std::uint64_t tail) {
    std::uint64_t word = Memory::load_acquire(d_->state);
    while (State(word).tail() == tail) {
      const std::uint64_t waiting = word | State::kWaiting;
      if (Memory::compare_exchange(d_->state, word, waiting)) {
        if (Memory::load_acquire(d_->sender_left) != 0) break;
        return static_cast<std::uint32_t>(waiting);
      }
    }
    return std::nullopt;
  }
  // Returns the word for FUTEX_WAIT.  It is shared between processes.
  std::uint32_t* futex_word() { return reinterpret_cast<std::uint32_t*>(&d_->state); }

  // Goes back to TCP for ever if nothing lies in the ring.  Call it under the lock, before a reader
  // that does not use this class may read from the descriptor.  kUnread: the rest must first be
  // read through this class (ARCHITECTURE.md, "Going back to TCP").  After kPlain the ring is not
  // used again; read() returns kPlain in all processes of this end.  REQUIRES: reason is not kNone.
  Result<LeaveResult> leave(Reason reason) {
    VB_CHECK(reason != Reason::kNone);
    if (plain()) return LeaveResult::kPlain;
    std::uint64_t word = Memory::load_acquire(d_->state);
    do {
      if (VB_TRY(used_of(State(word).tail())) != 0) return LeaveResult::kUnread;
    } while (!Memory::compare_exchange(d_->state, word, word & ~State::kOpen));
    Memory::store_release(d_->receiver_left, static_cast<std::uint32_t>(reason));
    return LeaveResult::kPlain;
  }

  // Returns true after leave().  No lock.
  bool has_left() const { return plain(); }

  // Returns true after the sender's start().  No lock.
  bool sender_has_started() const { return Memory::load_acquire(d_->sender_started) != 0; }

  // Returns why the sender has left; then nothing comes into the ring any more.  No lock.
  Reason sender_left() const { return reason_of(Memory::load_acquire(d_->sender_left)); }

  // Checks the state after the lock's last owner died with it (EOWNERDEAD).  Hold the lock.
  // kMalformed with Fault::kOwnerDied: the owner died in a TCP call, so that nobody knows how many
  // bytes it took.  End the connection then; otherwise continue.
  Result<void> recover() {
    if (Memory::load_relaxed(d_->is_receiving) == 0 || plain()) return {};
    return malformed(Fault::kOwnerDied, "stream: a process died while it read from TCP");
  }

 private:
  struct Segment {
    bool in_ring = false;
    bool ends = false;       // a later segment is known
    std::uint64_t rest = 0;  // the bytes before the later segment
  };

  bool plain() const { return Memory::load_relaxed(d_->receiver_left) != 0; }

  Result<std::size_t> used_of(std::uint64_t tail) const {
    const std::uint64_t used = (tail - Memory::load_relaxed(d_->head)) & kOffsetMask;
    if (used > ring_.size()) return malformed(Fault::kTail, "stream: the tail is impossible");
    return static_cast<std::size_t>(used);
  }

  // Returns the offset of the next byte.
  std::uint64_t next_offset() const {
    return offset_add(Memory::load_relaxed(d_->tcp_received), Memory::load_relaxed(d_->head));
  }

  // Finds the segment of the next byte.
  Result<Segment> advance() {
    const std::uint64_t offset = next_offset();
    const std::uint32_t before = Memory::load_relaxed(d_->read_segment);
    const auto [current, segment] = VB_TRY(segment_at(offset));
    if (current != before) {
      if ((current & 1) != 0 && start_of(current) != offset) {
        return malformed(Fault::kOverrun, "stream: TCP carried bytes of the ring");
      }
      Memory::store_release(d_->read_segment, current);
    }
    return segment;
  }
  // Finds the segment of a byte that is not read yet, and its number.
  Result<std::pair<std::uint32_t, Segment>> segment_at(std::uint64_t offset) const {
    const std::uint32_t last = Memory::load_acquire(d_->newest_segment);
    std::uint32_t current = Memory::load_relaxed(d_->read_segment);
    if (last - current >= Direction::kSegments) {
      return malformed(Fault::kTable, "stream: the table of segments is too long");
    }
    std::int64_t rest = 0;
    while (current != last) {
      rest = offset_distance(offset, start_of(current + 1));
      if (rest > 0) break;
      ++current;
    }
    return std::pair(current, Segment{.in_ring = (current & 1) != 0,
                                      .ends = current != last,
                                      .rest = static_cast<std::uint64_t>(rest)});
  }
  std::uint64_t start_of(std::uint32_t segment) const {
    return Memory::load_relaxed(d_->segment_starts[segment % Direction::kSegments]) & kOffsetMask;
  }

  ReadStep by_tcp(std::uint64_t bytes) {
    Memory::store_relaxed(d_->is_receiving, 1U);
    return {.kind = ReadStep::Kind::kTcp, .bytes = static_cast<std::size_t>(bytes)};
  }
  void count_received(std::size_t bytes) {
    Memory::fetch_add(d_->tcp_received, std::uint64_t{bytes});
  }

  // Copies bytes out of the ring.  Frees their memory in pieces, so that the sender can continue
  // during a long copy.
  void copy_out(std::span<std::byte> buffer, bool peek) {
    std::uint64_t position = Memory::load_relaxed(d_->head);
    while (!buffer.empty()) {
      const std::size_t n = copy_piece(position, buffer);
      buffer = buffer.subspan(n);
      position = offset_add(position, n);
      if (!peek) Memory::store_release(d_->head, position);
    }
  }
  // Copies the first bytes, at most kCopyBytesMax.  Returns how many.
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
