#pragma once

#include <atomic>
#include <utility>

#include "base/error.h"

namespace verbena::os {

// Distinguishes a process from a forked copy of it, at the cost of one load.  It is a page that the
// kernel clears in the child of every fork() and of every clone() that copies the memory
// (MADV_WIPEONFORK), even if no pthread_atfork() handler runs.  The child of a vfork() shares the
// memory, so it also shares the mark.
class ForkMark {
 public:
  // Maps the page.  Fails with kSystem.
  static Result<ForkMark> create();
  ForkMark(ForkMark&& other) noexcept : mark_(std::exchange(other.mark_, nullptr)) {}
  ForkMark& operator=(ForkMark&&) = delete;
  ~ForkMark();

  bool is_in_forked_child() const { return mark_->load(std::memory_order_relaxed) == 0; }

 private:
  explicit ForkMark(std::atomic<int>* mark) : mark_(mark) {}

  std::atomic<int>* mark_;
};

}  // namespace verbena::os
