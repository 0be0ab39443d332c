#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/strong.h"
#include "cm/types.h"

namespace verbena::cm {

// Whose turn it is to ask: of the REQs for one service of a host, and of the REPs to those who
// asked for it, so many are under way, and the others wait, in order.  Thousands at once would
// overrun what a host's socket holds, and be repeated while their answers are being made.
//
// A turn ends with the answer or with the last of kRepeats: of a service that is silent, so many
// are asked in the first three intervals of Retry.  Meanwhile RoundTrips learns how slow a slow one
// is.
class Turns {
 public:
  static constexpr std::uint32_t kUnderWayMax = 128;
  static constexpr std::uint32_t kRepeats = 2;
  enum class What : std::uint8_t { kReq, kRep };
  using Whom = std::tuple<Gid, ServiceId, What>;

  struct Line {
    std::uint32_t under_way = 0;
    std::deque<CommId> waiting{};
  };
  using Lines = std::map<Whom, Line>;
  struct Turn {
    Lines::iterator line;  // valid until end() or leave()
    bool has;              // or it waits
  };

  Turn begin(const Whom& whom, CommId id) {
    const auto at = lines_.try_emplace(whom).first;
    auto& [under_way, waiting] = at->second;
    if (under_way == kUnderWayMax) {
      waiting.push_back(id);
      return {at, false};
    }
    ++under_way;
    return {at, true};
  }
  // Whose turn it is instead, if anybody waits.  REQUIRES: it has its turn.
  std::optional<CommId> end(Lines::iterator at) {
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
  void leave(Lines::iterator at, CommId id) {
    auto& waiting = at->second.waiting;
    const auto place = std::ranges::find(waiting, id);
    VB_CHECK(place != waiting.end());
    waiting.erase(place);
  }

 private:
  Lines lines_;
};

}  // namespace verbena::cm
