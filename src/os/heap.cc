#include "os/heap.h"

#include <malloc.h>

#include <algorithm>

namespace verbena::os {

bool HeapTrim::is_due(std::size_t objects) {
  most_ = std::max(most_, objects);
  many_ = many_ || objects >= kMany;
  if (!many_ || objects > most_ / 8) return false;
  most_ = objects;
  many_ = objects >= kFew;
  return true;
}

bool HeapTrim::trim_if_due(std::size_t objects) {
  const bool due = is_due(objects);
  if (due) trim_heap();
  return due;
}

void trim_heap() { malloc_trim(0); }

}  // namespace verbena::os
