#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "ipoib/types.h"

namespace verbena::ipoib {

// Queues the outputs that Neighbours::poll() returns.
//
// Invariants:
//  * The queue has at most `frames_max` frames.  Further frames are dropped, as a network may do.
//  * Neighbours::resolve() limits the events: together with the calls that wait, there are at most
//    Config::waiters_max.
class Outbox {
 public:
  explicit Outbox(std::uint32_t frames_max) : frames_max_(frames_max) {}

  // Returns false if the frame was dropped.
  bool send(SendFrame frame) {
    if (frame_count_ >= frames_max_) return false;
    ++frame_count_;
    outputs_.emplace_back(std::move(frame));
    return true;
  }
  void report(const Resolved& event) { outputs_.emplace_back(event); }

  std::optional<Output> poll() {
    if (outputs_.empty()) return std::nullopt;
    std::optional<Output> output = std::move(outputs_.front());
    outputs_.pop_front();
    if (std::holds_alternative<SendFrame>(*output)) --frame_count_;
    return output;
  }
  // Returns the number of Resolved events in the queue.
  std::size_t events() const { return outputs_.size() - frame_count_; }

 private:
  const std::uint32_t frames_max_;
  std::deque<Output> outputs_;
  std::size_t frame_count_ = 0;
};

}  // namespace verbena::ipoib
