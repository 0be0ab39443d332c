#pragma once

#include "stream/memory.h"

// Prevents the use of a direction's empty ring, so that the caller can give its pages back to the
// system by a hole in the memory's file.  A hole reads as zeroes.  Only the socket service gives
// pages back: it has the descriptor of each memory, and both ends trust it.
//
//   if (ring.begin()) { punch a hole; ring.end(); }
//
// The class acts as one more receiver that sleeps: begin() withdraws the promise, so no bytes enter
// the ring, and end() promises again.  Bytes go by TCP meanwhile, as for any receiver that sleeps.
//
// A sender first reads the state, then copies its bytes, and then publishes them.  If another
// process made a hole between the last two steps, the sender would publish zeroes.  To prevent
// that, a sender takes its lock before it reads the state, and begin() withdraws the promise before
// it reads the lock.  So either begin() sees the lock, or the sender sees no promise.
//
// A process that dies between begin() and end() leaves the direction on TCP.
namespace verbena::stream {

template <class Memory = ring::SharedMemory>
class BasicIdleRing {
 public:
  // `sender` is the state of the end that sends by this direction.
  BasicIdleRing(Direction& direction, const EndState& sender)
      : d_(direction), send_lock_(send_lock_of(sender)) {}

  // Returns how many bytes have entered the ring so far, modulo 2^48.
  std::uint64_t position() const { return State(Memory::load_acquire(d_.state)).tail(); }

  // Returns false if the ring has unread bytes, if a sender holds its lock, or if another process
  // changes the state at this moment.  After true, the caller must call end() soon.
  bool begin() {
    std::uint64_t word = Memory::load_acquire(d_.state);
    const State state(word);
    if (state.tail() != (Memory::load_acquire(d_.head) & kOffsetMask)) return false;
    if (state.sleepers() == State::kSleepersMask) return false;
    if (!Memory::compare_exchange(d_.state, word, word + 1)) return false;
    if (Memory::load_seq_cst(send_lock_) == 0) return true;
    end();
    return false;
  }
  void end() {
    // A hostile program could change the state all the time, so the number of tries is limited.
    constexpr int kTriesMax = 1000;
    std::uint64_t word = Memory::load_relaxed(d_.state);
    for (int i = 0; i < kTriesMax && State(word).sleepers() != 0; ++i) {
      if (Memory::compare_exchange(d_.state, word, word - 1)) return;
    }
  }

 private:
  Direction& d_;
  const std::uint32_t& send_lock_;
};

using IdleRing = BasicIdleRing<>;

}  // namespace verbena::stream
