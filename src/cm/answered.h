#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "base/strong.h"
#include "base/time.h"
#include "mad/mad.h"

namespace verbena::cm {

// The REJs by which REQs and REPs were answered here, for peers that missed theirs and say them
// again: without it a second answer would have to be the consumer's, who has already decided.  No
// timer: what has expired is not found, and makes room first.
//
// Invariants: at most kMax, the oldest goes first.
class Answered {
 public:
  static constexpr std::size_t kMax = 1024;
  using Key = std::pair<CommId, Guid>;  // the peer's

  void remember(Key key, const mad::Mad& rej, Time until) {
    if (const auto [at, fresh] = rejs_.try_emplace(key); fresh) {
      order_.push_back(key);
      at->second = {rej, until};
    } else {
      at->second = {rej, until};
    }
    if (order_.size() > kMax) {
      rejs_.erase(order_.front());
      order_.pop_front();
    }
  }

  // Null if there is none.
  const mad::Mad* find(Key key, Time now) const {
    const auto at = rejs_.find(key);
    return at == rejs_.end() || at->second.second < now ? nullptr : &at->second.first;
  }

 private:
  std::map<Key, std::pair<mad::Mad, Time>> rejs_;
  std::deque<Key> order_;  // as first remembered
};

}  // namespace verbena::cm
