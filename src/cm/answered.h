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

// The last answers that were given here, for peers that missed theirs and ask again: without it a
// second answer would have to be the consumer's, who has already decided.  No timer: what has
// expired is not found, and makes room first.  A key is what tells questions apart.
//
// Invariants: at most kMax, the oldest goes first.
template <class K>
class AnsweredQuestions {
 public:
  static constexpr std::size_t kMax = 1024;
  using Key = K;

  void remember(const Key& question, const mad::Mad& answer, Time until) {
    const auto [at, fresh] = answers_.try_emplace(question);
    if (fresh) order_.push_back(question);
    at->second = {answer, until};
    if (order_.size() > kMax) {
      answers_.erase(order_.front());
      order_.pop_front();
    }
  }

  // Null if there is none.
  const mad::Mad* find(const Key& question, Time now) const {
    const auto at = answers_.find(question);
    return at == answers_.end() || at->second.second < now ? nullptr : &at->second.first;
  }

 private:
  std::map<Key, std::pair<mad::Mad, Time>> answers_;
  std::deque<Key> order_;  // as first remembered
};

// The REJs of REQs and REPs, by the peer's id and CA GUID.
using Answered = AnsweredQuestions<std::pair<CommId, Guid>>;

}  // namespace verbena::cm
