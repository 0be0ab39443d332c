#include "agent/captures.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <utility>

#include "os/clock.h"
#include "wire/ip.h"

namespace verbena::agent {

Captures::Captures(asio::io_context& loop, Random random, EndCallback on_end)
    : loop_(loop), random_(random), on_end_(std::move(on_end)), timer_(loop, [this] { tick(); }) {}

Result<std::uint64_t> Captures::start(os::Fd file, os::Fd process, Time now, Sources sources) {
  if (running_.size() >= kCapturesMax)
    return fail(Errc::kNoResources, "too many captures at a time (kCapturesMax)");
  struct stat status {};
  // Writing to a pipe that nobody reads would block the agent, and with it every program.
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(Errc::kInvalidArgument, "a capture needs a regular file");
  }
  if (!process) return fail(Errc::kInvalidArgument, "a capture needs a living process");
  // The id is random, because a program that starts late may still carry the id of a capture that
  // has ended, perhaps under an earlier agent.
  std::uint64_t id = 0;
  while (id == 0 || running_.contains(id)) id = random_.next();

  auto running = std::make_unique<RunningCapture>(
      std::move(process), Capture(std::move(file), os::wall_clock_offset_ns(), now));
  running->sources = sources;
  running->process_watch = Watch(loop_, running->process.get(), [this, id] { on_process_end(id); });
  running_.emplace(id, std::move(running));
  if (timer_.deadline() == kNever) timer_.at(now + kTick);
  return id;
}

Result<int> Captures::join(std::uint64_t capture, Capture::Program program) {
  const auto found = running_.find(capture);
  if (found == running_.end()) return fail(Errc::kBadHandle, "no such capture");
  auto joined = found->second->capture.join(program, os::now());
  if (!joined) ++found->second->programs_not_recorded;
  return joined;
}

void Captures::leave(Capture::Program program, Time now) {
  for (auto& [id, running] : running_) {
    if (!running->capture.has(program)) continue;
    running->capture.leave(program, now);
    finish_if_unused(id, now);
    // A program is in at most one capture, and finish_if_unused() may have changed `running_`.
    return;
  }
}

void Captures::flush(Capture::Program program, Time now) {
  for (auto& [id, running] : running_) {
    if (running->capture.has(program)) running->capture.flush(now);
  }
}

void Captures::add(link::Direction direction, const link::Address& address,
                   std::uint16_t identification, std::span<const std::byte> datagram, Time now) {
  if (running_.empty()) return;
  std::array<std::byte, link::CaptureRing::kFrameBytesMax> frame;
  if (link::frame_bytes(address, datagram.size()) > frame.size()) return;
  const std::size_t bytes = link::write_frame(frame, address, identification, datagram);
  for (auto& [id, running] : running_) {
    if (running->sources != Sources::kAll) continue;
    running->capture.add(
        {now, direction, {frame.begin(), frame.begin() + bytes}, address.link_layer}, now);
  }
}

std::uint64_t Captures::dropped() const {
  std::uint64_t sum = dropped_by_ended_captures_;
  for (const auto& [id, running] : running_) sum += running->capture.dropped();
  return sum;
}

void Captures::finish_all(Time now) {
  while (!running_.empty()) (void)finish(running_.begin()->first, now);  // on_end_ gets the result
}

Result<void> Captures::conclude(std::uint64_t capture, Time now) {
  const auto found = running_.find(capture);
  if (found == running_.end()) return fail(Errc::kBadHandle, "no such capture");
  RunningCapture& running = *found->second;
  running.process_has_ended = true;
  running.process_watch.read(false);
  if (running.capture.programs() == 0) return finish(capture, now);
  running.capture.flush_all(now);
  return outcome(running);
}

Result<void> Captures::outcome(const RunningCapture& running) {
  if (running.capture.failure()) {
    return fail(Errc::kSystem, "the capture is incomplete", running.capture.failure()->detail);
  }
  if (running.programs_not_recorded > 0) {
    return fail(Errc::kNoResources, "the capture is incomplete: a program could not be recorded");
  }
  return {};
}

void Captures::tick() {
  const Time now = os::now();
  bool filling = false;
  for (auto& [id, running] : running_) filling |= running->capture.tick(now);
  if (!running_.empty()) timer_.at(now + (filling ? kTickWhileFilling : kTick));
}

void Captures::on_process_end(std::uint64_t id) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  found->second->process_has_ended = true;
  found->second->process_watch.read(false);  // the pidfd stays readable for ever
  finish_if_unused(id, os::now());
}

void Captures::finish_if_unused(std::uint64_t id, Time now) {
  const RunningCapture& running = *running_.at(id);
  if (running.process_has_ended && running.capture.programs() == 0) (void)finish(id, now);
}

Result<void> Captures::finish(std::uint64_t id, Time now) {
  const auto found = running_.find(id);
  Capture& capture = found->second->capture;
  capture.finish(now);
  std::string text =
      fmt::format("capture ended: {} packets, {} dropped", capture.packets(), capture.dropped());
  if (capture.failure()) {
    text += fmt::format("; the file is incomplete: {}", std::strerror(capture.failure()->detail));
  }
  if (found->second->programs_not_recorded > 0) {
    text +=
        fmt::format("; {} programs could not be recorded", found->second->programs_not_recorded);
  }
  const auto result = outcome(*found->second);
  if (!result) ++incomplete_;
  dropped_by_ended_captures_ += capture.dropped();
  running_.erase(found);
  if (running_.empty()) timer_.cancel();
  on_end_(std::move(text));
  return result;
}

}  // namespace verbena::agent
