#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "cm/counters.h"
#include "cm/types.h"

namespace verbena::cm {

// Queues the messages and events that Manager::poll() returns.  The limit bounds memory if the
// owner does not drain the queue after each input.
//
// Invariants: there are at most kSendsMax messages; further messages are dropped, as the network
// might drop them.  The numbers of endpoints and resolutions bound the events, except StateChanged:
// each endpoint has at most one alternate path pending, and reports each other kind of event once.
class Outbox {
 public:
  static constexpr std::size_t kSendsMax = 65536;

  explicit Outbox(Counters& counters) : counters_(counters) {}

  enum class Kind { kFirst, kRepeat };

  void send(const mad::Address& to, wire::cm::AttributeId id, const mad::Mad& mad,
            Kind kind = Kind::kFirst) {
    if (sends_ == kSendsMax) {
      ++counters_.sends_dropped;
      return;
    }
    auto& counter = counters_.of(id);
    ++(kind == Kind::kFirst ? counter.sent : counter.repeated);
    ++sends_;
    outputs_.push_back(mad::SendMad{.to = to, .mad = mad});
  }
  void report(const Event& event) { outputs_.push_back(event); }

  std::optional<Output> poll() {
    if (outputs_.empty()) return std::nullopt;
    std::optional<Output> first = std::move(outputs_.front());
    outputs_.pop_front();
    if (std::holds_alternative<mad::SendMad>(*first)) --sends_;
    return first;
  }

 private:
  Counters& counters_;
  std::deque<Output> outputs_;
  std::size_t sends_ = 0;
};

}  // namespace verbena::cm
