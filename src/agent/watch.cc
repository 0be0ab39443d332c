#include "agent/watch.h"

#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <utility>

#include "os/clock.h"

namespace verbena::agent {

struct Watch::State {
  explicit State(asio::io_context& loop) : descriptor(loop) {}

  asio::posix::stream_descriptor descriptor;
  Callback readable{};
  Callback writable{};
  bool open = true;      // the Watch is there
  bool reading = true;   // wanted
  bool waiting = false;  // the loop has a handler for reading
};

Watch::Watch(asio::io_context& loop, int fd, Callback readable)
    : state_(std::make_shared<State>(loop)) {
  state_->readable = std::move(readable);
  asio::error_code failed;
  state_->descriptor.assign(fd, failed);
  // A descriptor that cannot be waited for (a file that a program sent as its pidfd) stays silent.
  if (!failed) arm(state_);
}

Watch& Watch::operator=(Watch&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Watch::~Watch() {
  if (!state_) return;
  state_->open = false;
  if (state_->descriptor.is_open()) state_->descriptor.release();
}

void Watch::arm(const std::shared_ptr<State>& state) {
  if (state->waiting || !state->reading) return;
  state->waiting = true;
  state->descriptor.async_wait(asio::posix::descriptor_base::wait_read,
                               [state](const asio::error_code& failed) {
                                 state->waiting = false;
                                 if (failed || !state->open || !state->reading) return;
                                 state->readable();
                                 if (state->open) arm(state);
                               });
}

void Watch::read(bool on) {
  if (state_->reading == on) return;
  state_->reading = on;
  if (on && state_->descriptor.is_open()) arm(state_);
}

void Watch::when_writable(Callback writable) {
  state_->writable = std::move(writable);
  state_->descriptor.async_wait(asio::posix::descriptor_base::wait_write,
                                [state = state_](const asio::error_code& failed) {
                                  if (failed || !state->open) return;
                                  auto call = std::exchange(state->writable, nullptr);
                                  if (call) call();
                                });
}

struct Soon::State {
  std::move_only_function<void()> call{};
  bool open = true;
  bool waiting = false;
};

Soon::Soon(asio::io_context& loop, std::move_only_function<void()> call)
    : loop_(loop), state_(std::make_shared<State>(std::move(call))) {}

Soon::~Soon() { state_->open = false; }

void Soon::soon() {
  if (state_->waiting) return;
  asio::post(loop_, [state = state_] {
    state->waiting = false;
    if (state->open) state->call();
  });
  state_->waiting = true;
}

struct Timer::State {
  explicit State(asio::io_context& loop) : timer(loop) {}

  asio::steady_timer timer;
  std::move_only_function<void()> expired{};
  Time deadline = kNever;
  Time set = kNever;            // when the loop's timer goes off: not after the deadline
  std::uint64_t times_set = 0;  // what an earlier setting brings is not ours
};

Timer::Timer(asio::io_context& loop, std::move_only_function<void()> expired)
    : state_(std::make_shared<State>(loop)) {
  state_->expired = std::move(expired);
}

// asio's cancel() throws for reasons that a timer of ours does not have.
Timer::~Timer() {  // NOLINT(bugprone-exception-escape)
  ++state_->times_set;
  state_->timer.cancel();
}

Time Timer::deadline() const { return state_->deadline; }

// Most deadlines are put off before they come, so a later one costs nothing: the timer goes off
// when the earlier would have come, and is set anew then.
void Timer::at(Time deadline) {
  state_->deadline = deadline;
  if (deadline < state_->set) set(state_);
}

void Timer::set(const std::shared_ptr<State>& state) {
  state->set = state->deadline;
  const std::uint64_t mine = ++state->times_set;
  // Both are CLOCK_MONOTONIC.
  state->timer.expires_at(std::chrono::steady_clock::time_point(state->set.time_since_epoch()));
  state->timer.async_wait([state, mine](const asio::error_code& failed) {
    if (failed || state->times_set != mine) return;
    state->set = kNever;
    if (state->deadline == kNever) return;
    if (state->deadline > os::now()) return set(state);
    state->deadline = kNever;
    state->expired();
  });
}

}  // namespace verbena::agent
