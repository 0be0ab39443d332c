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

// Limits how many requests to one target wait for their answer at the same time; the others queue.
// A target is the REQs for one service of a host, the REPs to the hosts that asked for that
// service, or the DREQs to a host.  Without the limit, thousands of requests at once would overrun
// the receiver's socket, and would be repeated while the receiver still makes their answers.
//
// A permit ends when the answer or an MRA arrives, when the request times out, or when no repeats
// are left.  It does not end when the peer is silent: a host that is slow to answer gets no more
// requests, and meanwhile RoundTrips learns how slow it is.  Each answer from the target restarts
// the timeout of those that queue for it.
class SendThrottle {
 public:
  static constexpr std::uint32_t kInFlightMax = 128;
  enum class Kind : std::uint8_t { kReq, kRep, kDreq };
  using Target = std::tuple<Gid, ServiceId, Kind>;  // kDreq has no service

  struct Queue {
    std::uint32_t in_flight = 0;
    Time last_answer{};
    std::deque<CommId> waiting{};
  };
  using Ref = std::map<Target, Queue>::iterator;
  struct Ticket {
    Ref queue;     // valid until release() or cancel()
    bool granted;  // if not, it waits in the queue
  };

  Ticket request(const Target& target, CommId id) {
    const auto at = queues_.try_emplace(target).first;
    Queue& queue = at->second;
    if (queue.in_flight == kInFlightMax) {
      queue.waiting.push_back(id);
      return {at, false};
    }
    ++queue.in_flight;
    return {at, true};
  }
  // Returns the next one in the queue, which has the permit from now on.  REQUIRES: it was granted.
  std::optional<CommId> release(Ref at) {
    Queue& queue = at->second;
    if (queue.waiting.empty()) {
      if (--queue.in_flight == 0) queues_.erase(at);
      return std::nullopt;
    }
    const CommId next = queue.waiting.front();
    queue.waiting.pop_front();
    return next;
  }
  // The target answered one of its requests, which may have lost its permit before.
  void note_answer(const Target& target, Time now) {
    if (const auto at = queues_.find(target); at != queues_.end()) at->second.last_answer = now;
  }
  // Takes one out of the queue.  The search is short: those that are cancelled together are mostly
  // at the front.  REQUIRES: it waits.
  void cancel(Ref at, CommId id) {
    auto& waiting = at->second.waiting;
    const auto place = std::ranges::find(waiting, id);
    VB_CHECK(place != waiting.end());
    waiting.erase(place);
  }

 private:
  std::map<Target, Queue> queues_;
};

}  // namespace verbena::cm
