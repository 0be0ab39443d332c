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

// Limits how many requests to one target wait for their answer at the same time.  Further requests
// wait in a queue until they may be sent.  There is one target for the REQs to a host and service,
// one for the REPs to a host and service, and one for all DREQs to a host.  Without the limit,
// thousands of requests at once would overrun the receiver's socket, and would be repeated while
// the receiver still makes their answers.
//
// A request that may be sent has a permit.  The permit ends when the answer or an MRA arrives, when
// the request times out, or when no repeats are left.  As long as repeats are left, a request
// without an answer keeps its permit, so a slow host gets no more requests.  Meanwhile RoundTrips
// learns how slow it is.  Each answer from the target restarts the timeout of the requests that
// queue for it.
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
  using QueueIterator = std::map<Target, Queue>::iterator;
  // Identifies a request in the SendThrottle, from enter() to leave().
  struct Ticket {
    QueueIterator queue;
    bool has_permit;  // if false, the request is in the queue
  };

  // Gives the request a permit, or puts it into the queue.
  Ticket enter(const Target& target, CommId id) {
    const auto at = queues_.try_emplace(target).first;
    Queue& queue = at->second;
    if (queue.in_flight == kInFlightMax) {
      queue.waiting.push_back(id);
      return {at, false};
    }
    ++queue.in_flight;
    return {at, true};
  }
  // Removes a request.  If it has a permit, passes the permit to the next request in the queue, and
  // returns that request.
  std::optional<CommId> leave(const Ticket& ticket, CommId id) {
    Queue& queue = ticket.queue->second;
    if (!ticket.has_permit) {
      // The search is short: requests that are cancelled together are mostly at the front.
      const auto position = std::ranges::find(queue.waiting, id);
      VB_CHECK(position != queue.waiting.end());
      queue.waiting.erase(position);
      return std::nullopt;
    }
    if (queue.waiting.empty()) {
      if (--queue.in_flight == 0) queues_.erase(ticket.queue);
      return std::nullopt;
    }
    const CommId next = queue.waiting.front();
    queue.waiting.pop_front();
    return next;
  }
  // Records that the target answered a request.  The request may have lost its permit before.
  void note_answer(const Target& target, Time now) {
    if (const auto at = queues_.find(target); at != queues_.end()) at->second.last_answer = now;
  }

 private:
  std::map<Target, Queue> queues_;
};

}  // namespace verbena::cm
