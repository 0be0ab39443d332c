#pragma once

#include <cstddef>

namespace verbena::os {

// Decides when to call malloc_trim().  After a program has freed most of its many objects, the free
// memory lies between the remaining objects, so free() alone returns none of it to the system.
// Only one thread may use an object of this class.
class HeapTrim {
 public:
  // Calls trim_heap() and returns true if is_due(objects).  `objects` is the current number of
  // objects.
  bool trim_if_due(std::size_t objects);
  // Returns true if had_many_ is set and the number of objects has fallen to an eighth of its
  // maximum since this function last returned true.  The caller then calls trim_heap(), which may
  // take milliseconds.
  bool is_due(std::size_t objects);

 private:
  static constexpr std::size_t kManyObjects = 1024;
  static constexpr std::size_t kFewObjects = 64;

  std::size_t maximum_ = 0;  // the maximum since is_due() last returned true
  // True from kManyObjects on, until is_due() returns true for fewer than kFewObjects.
  bool had_many_ = false;
};

// Returns free memory of the heap to the system.  Any thread.
void trim_heap();

}  // namespace verbena::os
