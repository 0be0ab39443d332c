#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "base/time.h"

namespace verbena::sim {

// Simulates time by a queue of actions.  Actions at the same time run in the order in which they
// were added, so a run depends only on its inputs.
class World {
 public:
  using Action = std::move_only_function<void()>;

  Time now() const { return now_; }

  // Adds an action that runs at the time `when`.  If `when` is in the past, the action runs now.
  void at(Time when, Action action) {
    queue_.emplace(std::pair(when < now_ ? now_ : when, order_++), std::move(action));
  }
  void after(Duration delay, Action action) { at(now_ + delay, std::move(action)); }

  // Runs the next action.  If no action is due by `limit`, returns false, and advances the time
  // to `limit` unless `limit` is kNever.
  bool step(Time limit = kNever) {
    if (queue_.empty() || queue_.begin()->first.first > limit) {
      if (limit != kNever && now_ < limit) now_ = limit;
      return false;
    }
    auto next = queue_.extract(queue_.begin());
    now_ = next.key().first;
    next.mapped()();
    return true;
  }
  void run_until(Time limit) {
    while (step(limit)) {
    }
  }
  bool is_idle() const { return queue_.empty(); }

 private:
  Time now_{};
  std::uint64_t order_ = 0;
  std::map<std::pair<Time, std::uint64_t>, Action> queue_;
};

}  // namespace verbena::sim
