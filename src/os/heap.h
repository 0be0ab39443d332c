#pragma once

#include <cstddef>

namespace verbena::os {

// Gives the system back what a crowd of objects leaves behind in the heap: free, but in pieces
// among what stays, so free() alone keeps all of it.  For one thread.
class HeapTrim {
 public:
  // So many there are now.  True if a crowd has become an eighth of what it was, or that again, and
  // the heap was gone through.
  bool holds(std::size_t objects);
  // The same, but leaves it to the caller to call trim_heap(), which may take milliseconds.
  bool is_due(std::size_t objects);

 private:
  static constexpr std::size_t kCrowd = 1024;
  static constexpr std::size_t kFew = 64;

  std::size_t most_ = 0;  // since then
  bool crowd_ = false;
};

// Any thread.
void trim_heap();

}  // namespace verbena::os
