#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"

namespace verbena::hca {

// Maps a 32-bit number to an object: QPs by QPN, memory regions and windows by the upper bits of
// their key.  A look-up costs one multiplication and usually one probe; only insert() allocates.
// The table does not own the objects.
//
// Invariant: at most half of the slots are used.  All slots from the home index of a key to the
// slot of the key are used.
template <class T>
class KeyTable {
 public:
  // Returns null if the key is not in the table.
  T* find(std::uint32_t key) const {
    for (std::size_t i = home_index(key);; i = (i + 1) & mask()) {
      const Slot& slot = slots_[i];
      if (slot.object == nullptr) return nullptr;
      if (slot.key == key) return slot.object;
    }
  }

  // Adds an object.  REQUIRES: the key is not in the table.
  void insert(std::uint32_t key, T& object) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    store(key, object);
    ++size_;
  }

  void erase(std::uint32_t key) {
    std::size_t hole = home_index(key);
    while (slots_[hole].object != nullptr && slots_[hole].key != key) hole = (hole + 1) & mask();
    if (slots_[hole].object == nullptr) return;
    // Moves a later entry into the hole if its look-up would stop at the hole.
    for (std::size_t i = (hole + 1) & mask(); slots_[i].object != nullptr; i = (i + 1) & mask()) {
      const std::size_t distance_from_home = (i - home_index(slots_[i].key)) & mask();
      if (distance_from_home >= ((i - hole) & mask())) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = {};
    --size_;
  }

  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint32_t key = 0;
    T* object = nullptr;
  };

  std::size_t mask() const { return slots_.size() - 1; }
  // Returns the index at which the search for a key begins.
  std::size_t home_index(std::uint32_t key) const {
    return (key * std::uint64_t{0x9e3779b97f4a7c15} >> 32) & mask();  // Fibonacci hashing
  }
  void store(std::uint32_t key, T& object) {
    std::size_t i = home_index(key);
    while (slots_[i].object != nullptr) {
      VB_CHECK(slots_[i].key != key);
      i = (i + 1) & mask();
    }
    slots_[i] = {key, &object};
  }
  void grow() {
    std::vector<Slot> old_slots(slots_.size() * 2);
    old_slots.swap(slots_);
    for (const Slot& slot : old_slots) {
      if (slot.object != nullptr) store(slot.key, *slot.object);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  std::size_t size_ = 0;
};

}  // namespace verbena::hca
