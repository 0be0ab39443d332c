#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/time.h"

namespace verbena::hca {

// Stores the position of an object in a heap of deadlines, and the deadline of its entry.
struct HeapPosition {
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t index = kNone;
  Time deadline = kNever;
};

// Orders objects by deadline, the earliest on top.  An entry may be due before the deadline of its
// object.  When the entry is due, the owner reads the deadline of the object, and schedules the
// object again.  So postponing a timer, which happens often, costs only one comparison.  Only
// reserve() allocates.  The heap does not own the objects.
template <class T, HeapPosition T::*Position>
class DeadlineHeap {
 public:
  // Makes space for this number of objects.
  void reserve(std::size_t object_count) {
    if (object_count > heap_.capacity()) heap_.reserve(2 * object_count);
  }
  Time top_deadline() const { return heap_.empty() ? kNever : (heap_.front()->*Position).deadline; }

  // Makes sure that the entry of the object is due at `deadline` at the latest.
  void schedule(T& object, Time deadline) {
    HeapPosition& position = object.*Position;
    if (deadline >= position.deadline) return;
    position.deadline = deadline;
    if (position.index == HeapPosition::kNone) {
      position.index = heap_.size();
      heap_.push_back(&object);
    }
    sift_up(position.index);
  }
  // Removes and returns the object on top.
  T& pop() {
    VB_CHECK(!heap_.empty());
    T& object = *heap_.front();
    remove(object);
    return object;
  }
  void remove(T& object) {
    const std::size_t index = (object.*Position).index;
    if (index == HeapPosition::kNone) return;
    object.*Position = {};
    T* const last_object = heap_.back();
    heap_.pop_back();
    if (last_object == &object) return;
    set(index, last_object);
    sift_up(index);
    sift_down((last_object->*Position).index);
  }

 private:
  Time deadline(std::size_t index) const { return (heap_[index]->*Position).deadline; }
  void set(std::size_t index, T* object) {
    heap_[index] = object;
    (object->*Position).index = index;
  }
  void exchange(std::size_t a, std::size_t b) {
    T* const object = heap_[a];
    set(a, heap_[b]);
    set(b, object);
  }
  void sift_up(std::size_t index) {
    while (index > 0 && deadline(index) < deadline((index - 1) / 2)) {
      exchange(index, (index - 1) / 2);
      index = (index - 1) / 2;
    }
  }
  void sift_down(std::size_t index) {
    while (true) {
      std::size_t earliest_index = index;
      for (const std::size_t child : {2 * index + 1, 2 * index + 2}) {
        if (child < heap_.size() && deadline(child) < deadline(earliest_index))
          earliest_index = child;
      }
      if (earliest_index == index) return;
      exchange(index, earliest_index);
      index = earliest_index;
    }
  }

  std::vector<T*> heap_;
};

}  // namespace verbena::hca
