#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "ring/shared_memory.h"

// A doorbell tells its owner, a process, which of its rings have new records or room.  The doorbell
// has one bit for each ring, which the ring's peer sets.  It also has a word, `sleeping`, which the
// owner sets when it is about to sleep.  A peer that sets a bit while the owner sleeps also writes
// to the owner's eventfd.  Otherwise there is no system call.
//
// Only the owner clears `sleeping`.  So a peer that stops or dies after it has set its bit, and
// before it writes to the eventfd, does not keep other peers from waking the owner.
//
// A peer can set or clear any bit, and so disturb the owner's other peers.  Peers of different
// users do not trust each other, so they need separate doorbells.
namespace verbena::ring {

struct DoorbellMemory {
  static constexpr std::size_t kRingsMax = 1024;
  alignas(64) std::uint32_t sleeping;
  alignas(64) std::array<std::uint64_t, kRingsMax / 64> ready;
};
static_assert(sizeof(DoorbellMemory) == 192);

// Implements the side of a peer, which sets the bit of one ring.
template <class Memory = SharedMemory>
class BasicNotifier {
 public:
  // REQUIRES: ring < DoorbellMemory::kRingsMax, and the memory outlives this object.
  BasicNotifier(DoorbellMemory* memory, std::size_t ring)
      : memory_(memory), word_(ring / 64), bit_(std::uint64_t{1} << ring % 64) {
    VB_CHECK(ring < DoorbellMemory::kRingsMax);
  }

  // Sets the ring's bit.  Returns true if the owner sleeps: write to its eventfd.
  bool notify() {
    // If the bit is set already, no wake is lost: this side checked `sleeping` after it had set the
    // bit, and the owner checks the bits before it sleeps.
    if ((Memory::fetch_or(memory_->ready[word_], bit_) & bit_) != 0) return false;
    Memory::fence();
    return Memory::load_relaxed(memory_->sleeping) != 0;
  }

 private:
  DoorbellMemory* memory_;
  std::size_t word_;
  std::uint64_t bit_;
};

// Implements the side of the process that sleeps.
template <class Memory = SharedMemory>
class BasicDoorbell {
 public:
  explicit BasicDoorbell(DoorbellMemory* memory) : memory_(memory) {}

  // Calls visit(ring) for each ring whose bit is set, and clears the bits.  A number may belong to
  // no ring, because a peer can set any bit.
  template <class Visit>
  void take(Visit visit) {
    for (std::size_t word = 0; word < memory_->ready.size(); ++word) {
      if (Memory::load_relaxed(memory_->ready[word]) == 0) continue;
      std::uint64_t bits = Memory::exchange(memory_->ready[word], std::uint64_t{0});
      for (; bits != 0; bits &= bits - 1) {
        visit(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
      }
    }
  }

  // Announces that the owner is about to sleep on its eventfd.  Returns false if a bit is set: do
  // not sleep.  disarm() is not needed then.  REQUIRES: all rings of the owner are parked.
  bool arm() {
    Memory::store_relaxed(memory_->sleeping, 1U);
    Memory::fence();
    for (const std::uint64_t& word : memory_->ready) {
      if (Memory::load_relaxed(word) == 0) continue;
      disarm();
      return false;
    }
    return true;
  }
  // Announces that the owner is awake again.
  void disarm() { Memory::store_relaxed(memory_->sleeping, 0U); }

 private:
  DoorbellMemory* memory_;
};

using Notifier = BasicNotifier<>;
using Doorbell = BasicDoorbell<>;

}  // namespace verbena::ring
