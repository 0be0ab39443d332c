#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/strong.h"
#include "base/time.h"
#include "cm/types.h"

namespace verbena::cm {

// Whose turn it is to ask: of the REQs for one service of a host, of the REPs to those who asked
// for it, and of the DREQs to a host, so many are under way, and the others wait, in order.
// Thousands at once would overrun what a host's socket holds, and be repeated while their answers
// are being made.
//
// A turn ends with the answer, an MRA being one, or with the patience, or when there are no repeats
// left.  Not with silence: a host that is slow to answer so many is not asked by more.  Meanwhile
// RoundTrips learns how slow it is.  Who waits has patience anew with each answer that another one
// gets.
class Turns {
 public:
  static constexpr std::uint32_t kUnderWayMax = 128;
  enum class What : std::uint8_t { kReq, kRep, kDreq };
  using Whom = std::tuple<Gid, ServiceId, What>;  // no service: kDreq

  struct Line {
    std::uint32_t under_way = 0;
    Time answered{};  // last
    std::deque<CommId> waiting{};
  };
  using Lines = std::map<Whom, Line>;
  struct Turn {
    Lines::iterator line;  // valid until end() or leave()
    bool has;              // or it waits
  };

  Turn begin(const Whom& whom, CommId id) {
    const auto at = lines_.try_emplace(whom).first;
    Line& line = at->second;
    if (line.under_way == kUnderWayMax) {
      line.waiting.push_back(id);
      return {at, false};
    }
    ++line.under_way;
    return {at, true};
  }
  // Whose turn it is instead, if anybody waits.  REQUIRES: it has its turn.
  std::optional<CommId> end(Lines::iterator at) {
    Line& line = at->second;
    if (line.waiting.empty()) {
      if (--line.under_way == 0) lines_.erase(at);
      return std::nullopt;
    }
    const CommId next = line.waiting.front();
    line.waiting.pop_front();
    return next;
  }
  // One that was asked has answered, in its turn or after it.
  void note_answer(const Whom& whom, Time now) {
    if (const auto at = lines_.find(whom); at != lines_.end()) at->second.answered = now;
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
