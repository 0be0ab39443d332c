#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>

#include "base/time.h"

// The loop's waits, owned: when one of these is destroyed its callback never runs again, not even
// if the loop had already queued it.  A callback may destroy its own watch.  One thread.
namespace verbena::agent {

// Says when a descriptor is ready, level-triggered.  The descriptor is somebody else's and must be
// closed after this.
class Watch {
 public:
  using Callback = std::move_only_function<void()>;

  Watch() = default;
  Watch(asio::io_context& loop, int fd, Callback readable);
  Watch(Watch&&) noexcept = default;
  Watch& operator=(Watch&& other) noexcept;
  ~Watch();

  explicit operator bool() const { return state_ != nullptr; }
  // Watches for reading or does not; on at first.
  void read(bool on);
  // Calls once, when the descriptor can be written to.  One at a time.
  void when_writable(Callback writable);

 private:
  struct State;
  static void arm(const std::shared_ptr<State>& state);

  // Shared with the handlers that the loop holds: it may run one after this is gone.
  std::shared_ptr<State> state_;
};

// Calls once for any number of soon(), after what the loop has to do now.
class Soon {
 public:
  Soon(asio::io_context& loop, std::move_only_function<void()> call);
  Soon(const Soon&) = delete;
  Soon& operator=(const Soon&) = delete;
  ~Soon();

  void soon();

 private:
  struct State;
  asio::io_context& loop_;
  std::shared_ptr<State> state_;
};

// One deadline at a time.
class Timer {
 public:
  Timer(asio::io_context& loop, std::move_only_function<void()> expired);
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer();

  // Replaces the deadline; kNever is none.
  void at(Time deadline);
  void cancel() { at(kNever); }
  Time deadline() const;

 private:
  struct State;
  static void set(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace verbena::agent
