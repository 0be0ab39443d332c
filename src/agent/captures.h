#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "agent/capture.h"
#include "agent/watch.h"
#include "base/random.h"
#include "link/flow.h"
#include "os/fd.h"

namespace verbena::agent {

// The captures that run, by id.  A capture ends when the process that it was made for is dead and
// every program that joined has left.  One thread.
class Captures {
 public:
  static constexpr std::size_t kCapturesMax = 64;
  static constexpr Duration kTick = std::chrono::milliseconds(20);
  static constexpr Duration kTickWhileFilling = std::chrono::milliseconds(1);

  // `ended` is told in words how each one ended.
  using Ended = std::move_only_function<void(std::string)>;

  Captures(asio::io_context& loop, Random random, Ended ended);

  // `file` is an open regular file, `process` the pidfd of whom the capture is for.
  // kInvalidArgument, kNoResources.
  Result<std::uint64_t> start(os::Fd file, os::Fd process, Time now);
  // The ring of a program, to be passed on.  kBadHandle: no such capture.
  Result<int> join(std::uint64_t capture, Capture::Program program);
  void leave(Capture::Program program, Time now);
  // The program that the capture was made for has ended.  All that was recorded is in the file, or
  // kSystem with the errno of the write that failed, or kNoResources: a program was not recorded.
  // kBadHandle: no such capture.  The capture goes on for programs that are still in it.
  Result<void> conclude(std::uint64_t capture, Time now);
  // Everything that this program has recorded is in the file, unless others are in the capture:
  // then it soon will be.
  void flush(Capture::Program program, Time now);

  // A packet that the agent itself has sent or received.  `datagram` is BTH to ICRC.
  void add(link::Direction direction, const link::Flow& flow, std::uint16_t identification,
           std::span<const std::byte> datagram, Time now);

  bool empty() const { return running_.empty(); }
  std::size_t size() const { return running_.size(); }
  std::uint64_t dropped() const;
  // Captures that have ended without all that belongs into their file.
  std::uint64_t incomplete() const { return incomplete_; }
  void finish_all(Time now);

 private:
  struct Running {
    Running(os::Fd pidfd, Capture started)
        : process(std::move(pidfd)), capture(std::move(started)) {}
    os::Fd process;
    Watch death{};
    bool dead = false;
    std::uint64_t left_out = 0;  // programs that could not be recorded
    Capture capture;
  };

  void tick();
  void died(std::uint64_t id);
  void end_if_over(std::uint64_t id, Time now);
  Result<void> finish(std::uint64_t id, Time now);
  static Result<void> outcome(const Running& running);

  asio::io_context& loop_;
  Random random_;
  Ended ended_;
  std::map<std::uint64_t, std::unique_ptr<Running>> running_{};
  std::uint64_t incomplete_ = 0;
  std::uint64_t dropped_before_ = 0;  // by captures that have ended
  Timer timer_;
};

}  // namespace verbena::agent
