#pragma once

#include <cstddef>

namespace verbena::os {

// Decides when to call malloc_trim().  After a program has freed most of many objects, the free
// memory lies between the objects that stay, so free() alone returns none of it to the system.
// Only one thread may use it.
class HeapTrim {
 public:
  // Trims the heap and returns true if is_due().  Call it with the current number of objects.
  bool trim_if_due(std::size_t objects);
  // Returns true if there were at least kMany objects, and their number has fallen to an eighth of
  // its maximum since this function last returned true.  The caller then calls trim_heap(), which
  // may take milliseconds.
  bool is_due(std::size_t objects);

 private:
  static constexpr std::size_t kMany = 1024;
  static constexpr std::size_t kFew = 64;

  std::size_t most_ = 0;  // the maximum since is_due() last returned true
  bool many_ = false;     // there were at least kMany objects, and kFew or more are left
};

// Returns free memory of the heap to the system.  Any thread.
void trim_heap();

}  // namespace verbena::os
