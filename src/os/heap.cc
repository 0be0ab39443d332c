#include "os/heap.h"

#include <malloc.h>

#include <algorithm>

namespace verbena::os {

bool HeapTrim::holds(std::size_t objects) {
  most_ = std::max(most_, objects);
  crowd_ = crowd_ || objects >= kCrowd;
  if (!crowd_ || objects > most_ / 8) return false;
  most_ = objects;
  crowd_ = objects >= kFew;
  malloc_trim(0);
  return true;
}

}  // namespace verbena::os
