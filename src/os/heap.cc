#include "os/heap.h"

#include <malloc.h>

#include <algorithm>

namespace verbena::os {

bool HeapTrim::is_due(std::size_t objects) {
  most_ = std::max(most_, objects);
  crowd_ = crowd_ || objects >= kCrowd;
  if (!crowd_ || objects > most_ / 8) return false;
  most_ = objects;
  crowd_ = objects >= kFew;
  return true;
}

bool HeapTrim::holds(std::size_t objects) {
  const bool due = is_due(objects);
  if (due) trim_heap();
  return due;
}

void trim_heap() { malloc_trim(0); }

}  // namespace verbena::os
