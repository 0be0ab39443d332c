#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/strong.h"
#include "cm/types.h"

namespace verbena::cm {

// Whose turn it is to ask: of the REQs for one service of a host so many are under way, and the
// others wait, in order.  Thousands at once would overrun what a host's socket holds, and be
// repeated while their answers are being made.
//
// A turn ends with the answer or with the first repeat: of a service that is slow, or silent, so
// many are asked in each first interval of Retry.
class Turns {
 public:
  static constexpr std::uint32_t kUnderWayMax = 128;
  using Whom = std::pair<Gid, ServiceId>;

  // False: it waits.
  bool begin(const Whom& whom, CommId id) {
    Line& at = lines_[whom];
    if (at.under_way == kUnderWayMax) {
      at.waiting.push_back(id);
      return false;
    }
    ++at.under_way;
    return true;
  }
  // Whose turn it is instead, if anybody waits.  REQUIRES: begin(), for each once.
  std::optional<CommId> end(const Whom& whom) {
    const auto at = lines_.find(whom);
    VB_CHECK(at != lines_.end());
    auto& [under_way, waiting] = at->second;
    if (waiting.empty()) {
      if (--under_way == 0) lines_.erase(at);
      return std::nullopt;
    }
    const CommId next = waiting.front();
    waiting.pop_front();
    return next;
  }
  // It does not wait any more.  Those that go together are mostly the first.  REQUIRES: it waits.
  void leave(const Whom& whom, CommId id) {
    const auto at = lines_.find(whom);
    VB_CHECK(at != lines_.end());
    auto& waiting = at->second.waiting;
    const auto place = std::ranges::find(waiting, id);
    VB_CHECK(place != waiting.end());
    waiting.erase(place);
  }

 private:
  struct Line {
    std::uint32_t under_way = 0;
    std::deque<CommId> waiting{};
  };
  std::map<Whom, Line> lines_;
};

}  // namespace verbena::cm
