#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>

#include "base/time.h"

// Wraps the waits of the event loop in objects.  When one of these objects is destroyed, its
// callback never runs again, even if the loop has already queued it.  A callback may destroy its
// own object.  Only one thread may use an object.
namespace verbena::agent {

// Calls back when a descriptor is ready, level-triggered.  It does not own the descriptor, which
// must stay open until the Watch is destroyed.
class Watch {
 public:
  using Callback = std::move_only_function<void()>;

  Watch() = default;
  Watch(asio::io_context& loop, int fd, Callback readable);
  Watch(Watch&&) noexcept = default;
  Watch& operator=(Watch&& other) noexcept;
  ~Watch();

  explicit operator bool() const { return state_ != nullptr; }
  // Starts or stops watching for reading.  A new Watch watches for reading.
  void read(bool on);
  // Calls `writable` once, when the descriptor can be written to.  Only one call may be pending.
  void when_writable(Callback writable);

 private:
  struct State;
  static void arm(const std::shared_ptr<State>& state);

  // The handlers in the loop share the state, because they may run after this object is destroyed.
  std::shared_ptr<State> state_;
};

// Makes a call after the loop's current work.  If schedule() is called several times before that,
// there is still only one call.
class DeferredCall {
 public:
  DeferredCall(asio::io_context& loop, std::move_only_function<void()> call);
  DeferredCall(const DeferredCall&) = delete;
  DeferredCall& operator=(const DeferredCall&) = delete;
  ~DeferredCall();

  void schedule();

 private:
  struct State;
  asio::io_context& loop_;
  std::shared_ptr<State> state_;
};

// Calls back at a deadline.  A Timer has one deadline at a time.
class Timer {
 public:
  Timer(asio::io_context& loop, std::move_only_function<void()> expired);
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer();

  // Replaces the deadline; kNever means none.
  void at(Time deadline);
  void cancel() { at(kNever); }
  Time deadline() const;

 private:
  struct State;
  static void set(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace verbena::agent
