#include "os/heap.h"

#include <malloc.h>

#include <algorithm>

namespace verbena::os {

bool HeapTrim::is_due(std::size_t objects) {
  maximum_ = std::max(maximum_, objects);
  had_many_ = had_many_ || objects >= kManyObjects;
  if (!had_many_ || objects > maximum_ / 8) return false;
  maximum_ = objects;
  had_many_ = objects >= kFewObjects;
  return true;
}

bool HeapTrim::trim_if_due(std::size_t objects) {
  const bool due = is_due(objects);
  if (due) trim_heap();
  return due;
}

void trim_heap() { malloc_trim(0); }

}  // namespace verbena::os
