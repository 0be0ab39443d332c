#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/error.h"
#include "ring/shared_memory.h"

// A stream moves the bytes of one TCP connection within a host through memory that both ends map,
// while the TCP connection stays open.  Each direction is one sequence of bytes.  Each byte goes
// either by TCP or by a ring.  A table in the memory says which offsets went which way.  So TCP
// carries only bytes of the program, in order, and a reader can always continue with plain TCP
// where the ring ends.
//
//   sender                                         receiver
//   write(bytes): copies them, or chooses TCP      read(buffer): copies bytes, or chooses TCP
//   sent(n): reports that TCP accepted n bytes     received(n): reports that TCP returned n bytes
//                                                  withdraw(tail): true: the receiver may sleep
//                                                  promise(): the receiver checks the ring again
//
// The ring is used only while the receiver promises to check the ring before it sleeps in the
// kernel.  The promise and the ring's tail share one word (State), which both sides change by
// compare and exchange: a sender publishes bytes only while the promise is valid, and a receiver
// withdraws the promise only if the tail has not moved since the receiver read it.  So no receiver
// sleeps while the ring has bytes that it has not noticed.  Without the promise the sender writes
// to TCP, and the kernel wakes the receiver, whether it waits in recv(), poll(), select() or
// epoll_wait().
//
// The memory contains the whole state of both directions.  So several processes can share one end
// (after fork, exec, or a passed descriptor) without further messages between them.  One compare
// and exchange, or one store, commits the bytes of a copy.  So a process can be killed between any
// two accesses; see recover() for the time between a system call and its report.  Each end has a
// second memory, EndState, which only the processes of this end map.
//
// Neither end trusts the other.  The other end can write anything anywhere in the memory at any
// time, and so corrupt the bytes that it sends or receives, as it can do on any connection.  Each
// number from the memory is copied, checked and then used as an index within the ring or the table.
// After an invalid number, functions return kMalformed, where Error::detail is a Fault.  The caller
// then resets the connection (ECONNRESET).
//
// No function calls the operating system, waits, allocates or locks.  EndState has space for the
// locks of the caller.
namespace verbena::stream {

// Describes an invalid value in the memory.
enum class Fault : std::uint16_t {
  kTail = 1,       // the receiver found more unread bytes than the ring's size, or the sender found
                   // that the tail has moved during its write()
  kHead = 2,       // the sender found the receiver's position outside of the ring's bytes
  kTable = 3,      // the table of segments has an impossible length, or contradicts the ring
  kOverrun = 4,    // TCP carried bytes that the table assigns to the ring
  kEarlyEnd = 5,   // TCP ended before it carried all bytes that the table assigns to TCP
  kOwnerDied = 6,  // a process died during a TCP call, so the offset is lost; see recover()
  kSleepers = 7,   // more sleepers than can be counted
};
constexpr std::unexpected<Error> malformed(Fault fault, const char* text) {
  return fail(Errc::kMalformed, text, static_cast<std::uint16_t>(fault));
}

// Gives the reason why a direction went back to TCP permanently.
enum class Reason : std::uint32_t {
  kNone = 0,        // the direction has not gone back
  kExec = 1,        // exec() passes the descriptor to another program
  kPassed = 2,      // the program has passed the descriptor to another process
  kKernelCall = 3,  // the program uses a call that cannot use the ring (splice, MSG_ZEROCOPY)
  kUrgent = 4,      // urgent data: only the kernel knows its position in the stream
  kOther = 5,       // for example stdio, SIGIO or a seccomp filter
  kEnd = 6,         // the direction has ended, because the program has called shutdown()
};
inline constexpr std::uint32_t kReasons = 7;

// Positions in the ring and offsets in the stream are counted modulo 2^48.
inline constexpr int kOffsetBits = 48;
inline constexpr std::uint64_t kOffsetMask = (std::uint64_t{1} << kOffsetBits) - 1;
constexpr std::uint64_t offset_add(std::uint64_t offset, std::uint64_t bytes) {
  return (offset + bytes) & kOffsetMask;
}
// Returns how many bytes `to` is after `from`.  The result is negative if `to` is before `from`.
constexpr std::int64_t offset_distance(std::uint64_t from, std::uint64_t to) {
  return static_cast<std::int64_t>((to - from) << (64 - kOffsetBits)) >> (64 - kOffsetBits);
}

// Interprets Direction::state.  A value of 0 means that the receiver has not started.
class State {
 public:
  static constexpr std::uint64_t kSleepersMask = 0x1fff;  // counts receivers that may sleep
  static constexpr std::uint64_t kWaiting = 0x2000;       // a receiver waits for a change (futex)
  static constexpr std::uint64_t kOpen = 0x4000;  // from the receiver's start() to its leave()
  static constexpr int kTailShift = 64 - kOffsetBits;

  explicit constexpr State(std::uint64_t word) : word_(word) {}
  constexpr std::uint64_t tail() const { return word_ >> kTailShift; }
  constexpr std::uint64_t sleepers() const { return word_ & kSleepersMask; }
  constexpr bool has_waiter() const { return (word_ & kWaiting) != 0; }
  constexpr bool is_open() const { return (word_ & kOpen) != 0; }
  // Returns true if each receiver promises to check the ring before it sleeps in the kernel.
  constexpr bool is_promised() const { return is_open() && sleepers() == 0; }
  // Returns the word that publishes `bytes` more bytes.  The word has no kWaiting, because the
  // publisher wakes the receivers that wait.
  constexpr std::uint64_t after_publishing(std::uint64_t bytes) const {
    return (word_ & ~kWaiting) + (bytes << kTailShift);
  }

 private:
  std::uint64_t word_;
};

// Holds the state of one direction, in shared memory.  The comment at each cache line names the
// side that writes it.  Zeroed memory is a new direction.
struct Direction {
  static constexpr std::size_t kSegments = 32;

  // The sender writes this line.  In `state`, only the sender moves the tail, but both sides and
  // the socket service (idle_ring.h) change the other bits.
  alignas(64) std::uint64_t state;  // see State
  std::uint64_t base;               // a position p lies at (p + base) modulo the ring's size
  std::uint32_t newest_segment;     // number of the newest segment; even: by TCP, odd: by the ring
  std::uint32_t is_sending;         // 1: a send() is not yet reported to sent()
  std::uint32_t sender_started;
  std::uint32_t sender_leave_reason;  // a Reason
  std::uint64_t tcp_sent;             // bytes that TCP has accepted since the connection began
  std::uint64_t wakes;                // changes from the ring to TCP because there was no promise
  std::uint64_t overflows;  // changes from the ring to TCP because the ring or the table was full
  std::uint64_t unread_since;  // when the ring's first unread byte was sent, by the callers' clock

  // The receiver writes this line.
  alignas(64) std::uint64_t head;  // the position up to which the ring's bytes were read
  std::uint64_t tcp_received;      // bytes that were read from TCP since the connection began
  std::uint32_t read_segment;      // number of the segment of the next byte to read
  std::uint32_t is_receiving;      // 1: a recv() under the lock is not yet reported to received()
  std::uint32_t receiver_started;
  std::uint32_t receiver_leave_reason;  // a Reason

  // The sender writes these lines.  Element i modulo kSegments is the offset at which segment i
  // begins.
  alignas(64) std::array<std::uint64_t, kSegments> segment_starts;
  std::uint64_t ring_start;  // the offset of the first byte that the ring has carried
};
static_assert(sizeof(Direction) == 448);
static_assert(std::endian::native == std::endian::little, "futex_word() is the state's low half");

// Counts the descriptors of one end that are in transit (SCM_RIGHTS) to another process, which
// will continue the stream.
struct Passing {
  std::uint32_t count;
  std::uint32_t user_timeout;  // the program's TCP_USER_TIMEOUT while `count` is not 0
};

// The memory of a connection is Control, padded to kControlBytes, then the ring of direction 0 and
// the ring of direction 1.  Side 0 sends by direction 0, side 1 by direction 1.
struct Control {
  std::array<Direction, 2> directions;
};
inline constexpr std::size_t kControlBytes = 4096;
static_assert(sizeof(Control) <= kControlBytes);

// Holds what the processes of one end share among themselves, in a memory of its own, which is
// padded to kEndBytes.  The peer cannot map this memory.  So the peer cannot make this end wait for
// a lock, or change the end's counts and options.  This layer does not use the members; the owner
// of the streams does.  Zeroed memory is a new end.
struct EndState {
  static constexpr std::size_t kLockBytes = 64;

  // Each lock serializes one direction's calls from all threads and processes of the end.  The
  // first 32 bits of send_lock are not zero while a sender holds it, and the lock operation is
  // sequentially consistent.
  alignas(64) std::array<std::byte, kLockBytes> send_lock;
  alignas(64) std::array<std::byte, kLockBytes> receive_lock;
  // Counts the processes that have the socket, and the socket's descriptors in transit to a
  // process.
  std::uint32_t holders;
  // Holds the values of socket options that the program has set, while the kernel's socket has
  // other values.  All processes of the end see the same values.
  std::uint32_t emulated_options;
  // The receive_lock guards the changes of `count`.  While `count` is not 0, setsockopt() changes
  // `user_timeout` without the lock.
  Passing passing;
};
inline constexpr std::size_t kEndBytes = 4096;
static_assert(sizeof(EndState) <= kEndBytes);

// A ring smaller than 16 KiB gains nothing over TCP; the layer accepts smaller rings for tests.
// Only the pages of a ring that were written cost memory, and the sender fills an empty ring from
// its first byte again.  So a ring can be as large as the socket's buffers.  The caller can give
// the pages of a ring that is empty for some time back to the system (idle_ring.h).
inline constexpr std::size_t kRingBytesMin = 16;
inline constexpr std::size_t kRingBytesMax = std::size_t{1} << 30;

inline const std::uint32_t& send_lock_of(const EndState& end) {
  return *reinterpret_cast<const std::uint32_t*>(end.send_lock.data());
}

constexpr std::size_t memory_bytes(std::size_t ring_bytes) {
  return kControlBytes + 2 * ring_bytes;
}

// Holds one direction's part of the mapped memory.
struct DirectionMemory {
  Direction* direction = nullptr;
  std::span<std::byte> ring;
};

// Returns the memory of a direction (0 or 1).  The length of `memory` comes from the mapped file.
// The file must be sealed against shrinking (F_SEAL_SHRINK): otherwise the peer could end this
// process by SIGBUS.  kInvalidArgument: the memory is not aligned, or its length is not
// memory_bytes() of a power of two from kRingBytesMin to kRingBytesMax.
inline Result<DirectionMemory> direction_memory(std::span<std::byte> memory,
                                                std::size_t direction) {
  VB_CHECK(direction < 2);
  if (memory.size() < memory_bytes(kRingBytesMin) || memory.size() > memory_bytes(kRingBytesMax) ||
      !std::has_single_bit(memory.size() - kControlBytes) ||
      std::bit_cast<std::uintptr_t>(memory.data()) % alignof(Direction) != 0) {
    return fail(Errc::kInvalidArgument, "stream: the size of the memory does not fit two rings");
  }
  const std::size_t ring_bytes = (memory.size() - kControlBytes) / 2;
  return DirectionMemory{&reinterpret_cast<Control*>(memory.data())->directions[direction],
                         memory.subspan(kControlBytes + direction * ring_bytes, ring_bytes)};
}

// Describes a direction for listings.  Any process that maps the memory may call counters_of(),
// without a lock.  The programs write these numbers, so they may be wrong.
struct Counters {
  std::uint64_t by_ring = 0;        // bytes that went by the ring, modulo 2^48
  std::uint64_t by_tcp = 0;         // bytes that went by TCP since the connection began
  std::uint64_t unread = 0;         // bytes that lie in the ring
  std::uint64_t wakes = 0;          // see Direction::wakes
  std::uint64_t overflows = 0;      // see Direction::overflows
  std::uint32_t changes = 0;        // times that the bytes changed between TCP and ring
  std::uint64_t ring_start = 0;     // the offset of the first byte that the ring has carried
  std::uint64_t segment_start = 0;  // the offset at which the newest segment begins
  bool sender_started = false;
  Reason sender_leave_reason = Reason::kNone;
  Reason receiver_leave_reason = Reason::kNone;
};

inline Reason reason_of(std::uint32_t number) {
  return number < kReasons ? static_cast<Reason>(number) : Reason::kOther;
}

inline Counters counters_of(const Direction& direction) {
  using Memory = ring::SharedMemory;
  const State state(Memory::load_acquire(direction.state));
  const std::uint64_t head = Memory::load_relaxed(direction.head);
  const std::uint32_t newest = Memory::load_acquire(direction.newest_segment);
  return {
      .by_ring = state.tail(),
      .by_tcp = Memory::load_relaxed(direction.tcp_sent),
      .unread = (state.tail() - head) & kOffsetMask,
      .wakes = Memory::load_relaxed(direction.wakes),
      .overflows = Memory::load_relaxed(direction.overflows),
      .changes = newest,
      .ring_start = Memory::load_relaxed(direction.ring_start) & kOffsetMask,
      .segment_start = newest == 0 ? 0
                                   : Memory::load_relaxed(
                                         direction.segment_starts[newest % Direction::kSegments]) &
                                         kOffsetMask,
      .sender_started = Memory::load_relaxed(direction.sender_started) != 0,
      .sender_leave_reason = reason_of(Memory::load_relaxed(direction.sender_leave_reason)),
      .receiver_leave_reason = reason_of(Memory::load_relaxed(direction.receiver_leave_reason))};
}

}  // namespace verbena::stream
