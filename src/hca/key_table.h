#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"

namespace verbena::hca {

// Maps a 32-bit number from a packet to an object: QPs by QPN, memory regions by key.  A look-up
// costs one multiplication and usually one probe; only insert() allocates.  The table does not own
// the objects.
//
// Invariant: at most half of the places are used, and no place between a key's home index and its
// place is empty.
template <class T>
class KeyTable {
 public:
  // Returns null if the key is not in the table.
  T* find(std::uint32_t key) const {
    for (std::size_t i = home_index(key);; i = (i + 1) & mask()) {
      const Place& place = places_[i];
      if (place.object == nullptr) return nullptr;
      if (place.key == key) return place.object;
    }
  }

  // Adds an object.  REQUIRES: the key is not in the table.
  void insert(std::uint32_t key, T& object) {
    if (2 * (size_ + 1) > places_.size()) grow();
    store(key, object);
    ++size_;
  }

  void erase(std::uint32_t key) {
    std::size_t hole = home_index(key);
    while (places_[hole].object != nullptr && places_[hole].key != key) hole = (hole + 1) & mask();
    if (places_[hole].object == nullptr) return;
    // If a look-up could not find a later entry behind the hole, moves that entry into the hole.
    for (std::size_t i = (hole + 1) & mask(); places_[i].object != nullptr; i = (i + 1) & mask()) {
      const std::size_t distance_from_home = (i - home_index(places_[i].key)) & mask();
      if (distance_from_home >= ((i - hole) & mask())) {
        places_[hole] = places_[i];
        hole = i;
      }
    }
    places_[hole] = {};
    --size_;
  }

  std::size_t size() const { return size_; }

 private:
  struct Place {
    std::uint32_t key = 0;
    T* object = nullptr;
  };

  std::size_t mask() const { return places_.size() - 1; }
  // Returns the index at which the search for a key begins.
  std::size_t home_index(std::uint32_t key) const {
    return (key * std::uint64_t{0x9e3779b97f4a7c15} >> 32) & mask();  // Fibonacci hashing
  }
  void store(std::uint32_t key, T& object) {
    std::size_t i = home_index(key);
    while (places_[i].object != nullptr) {
      VB_CHECK(places_[i].key != key);
      i = (i + 1) & mask();
    }
    places_[i] = {key, &object};
  }
  void grow() {
    std::vector<Place> old(places_.size() * 2);
    old.swap(places_);
    for (const Place& p : old) {
      if (p.object != nullptr) store(p.key, *p.object);
    }
  }

  std::vector<Place> places_ = std::vector<Place>(64);
  std::size_t size_ = 0;
};

}  // namespace verbena::hca
