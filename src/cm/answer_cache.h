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

// Stores the latest answers.  A peer that did not get its answer repeats the request, and then gets
// the same answer again.  The consumer does not get the request again.  There is no timer:
// find() ignores expired answers.  Different requests have different keys.
//
// Invariants: there are at most kMax answers; a new one replaces the oldest.
template <class K>
class AnswerCache {
 public:
  static constexpr std::size_t kMax = 1024;
  using Key = K;

  void remember(const Key& request, const mad::Mad& answer, Time until) {
    const auto [at, is_new] = answers_.try_emplace(request);
    if (is_new) order_.push_back(request);
    at->second = {answer, until};
    if (order_.size() > kMax) {
      answers_.erase(order_.front());
      order_.pop_front();
    }
  }

  // Returns null if there is no answer, or if it has expired.
  const mad::Mad* find(const Key& request, Time now) const {
    const auto at = answers_.find(request);
    return at == answers_.end() || at->second.second < now ? nullptr : &at->second.first;
  }

 private:
  std::map<Key, std::pair<mad::Mad, Time>> answers_;
  std::deque<Key> order_;  // the oldest first
};

// Stores the REJs that answered REQs and REPs, by the peer's id and CA GUID.
using RejCache = AnswerCache<std::pair<CommId, Guid>>;

}  // namespace verbena::cm
