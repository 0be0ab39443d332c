#include "preload/processor.h"

#include <sched.h>

#include <atomic>

namespace verbena::preload::processor {

os::AdaptiveSpin& adaptive_spin() {
  static constinit thread_local os::AdaptiveSpin adaptive{kSpin};
  return adaptive;
}

bool has_several_processors() {
  static constinit std::atomic<int> processor_count{0};  // 0 before the first call
  int count = processor_count.load(std::memory_order_relaxed);
  if (count == 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    count = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 2;
    processor_count.store(count, std::memory_order_relaxed);
  }
  return count > 1;
}

}  // namespace verbena::preload::processor
