#include "agent/watch.h"

#include <poll.h>

#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <utility>

#include "os/clock.h"
#include "os/system_call.h"

namespace verbena::agent {
namespace {

// Returns true if a read would not block.  This check is needed because asio reuses the state
// objects of descriptors.  So asio may report a new descriptor as readable because of an event of
// an earlier descriptor that had the same state object.  Many owners treat "readable" as the end of
// a program.
bool is_readable(int fd) {
  pollfd request{.fd = fd, .events = POLLIN, .revents = 0};
  const timespec at_once{};
  return os::repeat_call(SYS_ppoll, &request, 1, &at_once, nullptr, 0) != 0;
}

}  // namespace

struct Watch::State {
  explicit State(asio::io_context& loop) : descriptor(loop) {}

  asio::posix::stream_descriptor descriptor;
  Callback readable{};
  Callback writable{};
  bool open = true;      // the Watch still exists
  bool reading = true;   // the owner wants to read
  bool waiting = false;  // the loop has a handler for reading
};

Watch::Watch(asio::io_context& loop, int fd, Callback readable)
    : state_(std::make_shared<State>(loop)) {
  state_->readable = std::move(readable);
  asio::error_code failed;
  state_->descriptor.assign(fd, failed);
  // If epoll refuses the descriptor (a file that a program sent as its pidfd), there are no
  // callbacks.
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
                                 if (is_readable(state->descriptor.native_handle())) {
                                   state->readable();
                                 }
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

struct DeferredCall::State {
  std::move_only_function<void()> call{};
  bool open = true;      // the DeferredCall still exists
  bool waiting = false;  // the loop has a handler for the call
};

DeferredCall::DeferredCall(asio::io_context& loop, std::move_only_function<void()> call)
    : loop_(loop), state_(std::make_shared<State>(std::move(call))) {}

DeferredCall::~DeferredCall() { state_->open = false; }

void DeferredCall::schedule() {
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
  Time expiry = kNever;         // when asio's timer expires: at the deadline or earlier
  std::uint64_t times_set = 0;  // lets handlers detect that the timer was set again
};

Timer::Timer(asio::io_context& loop, std::move_only_function<void()> expired)
    : state_(std::make_shared<State>(loop)) {
  state_->expired = std::move(expired);
}

// asio declares that cancel() may throw, but cancelling this timer cannot fail.
Timer::~Timer() {  // NOLINT(bugprone-exception-escape)
  ++state_->times_set;
  state_->timer.cancel();
}

Time Timer::deadline() const { return state_->deadline; }

// Most deadlines are replaced by a later one before they are reached.  The replacement costs
// nothing: asio's timer still expires at the earlier time, and is then set again.
void Timer::at(Time deadline) {
  state_->deadline = deadline;
  if (deadline < state_->expiry) set(state_);
}

void Timer::set(const std::shared_ptr<State>& state) {
  state->expiry = state->deadline;
  const std::uint64_t setting = ++state->times_set;
  // Our Time and steady_clock are both CLOCK_MONOTONIC.
  state->timer.expires_at(std::chrono::steady_clock::time_point(state->expiry.time_since_epoch()));
  state->timer.async_wait([state, setting](const asio::error_code& failed) {
    if (failed || state->times_set != setting) return;
    state->expiry = kNever;
    if (state->deadline == kNever) return;
    if (state->deadline > os::now()) return set(state);
    state->deadline = kNever;
    state->expired();
  });
}

}  // namespace verbena::agent
