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
#include "link/address.h"
#include "os/fd.h"

namespace verbena::agent {

// Owns the running captures, by id.  Each capture was started for one process.  A capture ends when
// this process has ended and every program that joined the capture has left.  Only one thread may
// use it.
class Captures {
 public:
  static constexpr std::size_t kCapturesMax = 64;
  static constexpr Duration kTick = std::chrono::milliseconds(20);
  static constexpr Duration kTickWhileFilling = std::chrono::milliseconds(1);

  // Receives a line for the log that tells how a capture ended.  empty() and size() do not count
  // this capture any more.
  using EndCallback = std::move_only_function<void(std::string)>;

  Captures(asio::io_context& loop, Random random, EndCallback on_end);

  enum class Sources : std::uint8_t { kAll, kPrograms };

  // Starts a capture.  `file` is an open regular file; `process` is the pidfd of the process that
  // the capture is for.  With kPrograms, the capture has the packets of the programs that join it,
  // and not those of the agent itself.  kInvalidArgument: the file or the process is not usable.
  // kNoResources: there are kCapturesMax captures.
  Result<std::uint64_t> start(os::Fd file, os::Fd process, Time now,
                              Sources sources = Sources::kAll);
  // Makes a ring for a program and returns its descriptor, to be passed on.  kBadHandle: there is
  // no such capture.
  Result<int> join(std::uint64_t capture, Capture::Program program);
  void leave(Capture::Program program, Time now);
  // Writes everything recorded so far to the file.  Call it when the process that the capture was
  // started for has ended.  The capture continues for programs that have not left.  kSystem: a
  // write failed, with its errno.  kNoResources: a program could not be recorded.  kBadHandle:
  // there is no such capture.
  Result<void> conclude(std::uint64_t capture, Time now);
  // Writes what this program has recorded to the file.  If other programs also record, tick()
  // writes the last records a little later.
  void flush(Capture::Program program, Time now);

  // Adds a packet that the agent itself has sent or received.  `datagram` is BTH to ICRC.
  void add(link::Direction direction, const link::Address& address, std::uint16_t identification,
           std::span<const std::byte> datagram, Time now);

  bool empty() const { return running_.empty(); }
  std::size_t size() const { return running_.size(); }
  std::uint64_t dropped() const;
  // Returns the number of captures that have ended with an incomplete file.
  std::uint64_t incomplete() const { return incomplete_; }
  void finish_all(Time now);

 private:
  struct RunningCapture {
    RunningCapture(os::Fd pidfd, Capture started)
        : process(std::move(pidfd)), capture(std::move(started)) {}
    os::Fd process;
    Watch process_watch{};
    bool process_has_ended = false;
    Sources sources = Sources::kAll;
    std::uint64_t programs_not_recorded = 0;  // programs that could not be recorded
    Capture capture;
  };

  void tick();
  void on_process_end(std::uint64_t id);
  void finish_if_unused(std::uint64_t id, Time now);
  Result<void> finish(std::uint64_t id, Time now);
  static Result<void> outcome(const RunningCapture& running);

  asio::io_context& loop_;
  Random random_;
  EndCallback on_end_;
  std::map<std::uint64_t, std::unique_ptr<RunningCapture>> running_{};
  std::uint64_t incomplete_ = 0;
  std::uint64_t dropped_by_ended_captures_ = 0;  // packets
  Timer timer_;
};

}  // namespace verbena::agent
