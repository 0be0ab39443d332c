#pragma once

#include <coroutine>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "verbena/c_api_requests.h"
#include "verbena/loop.h"
#include "verbena/outcome.h"

namespace verbena {

namespace detail {

// Represents a started command with a result of type T.
template <class T>
class StartedCommand : public Operation {
 public:
  explicit StartedCommand(Loop& loop) : loop_(loop) {}

  void submit() { done_ = vb_submit(loop_.requests(), this) != EINPROGRESS; }
  bool done() const { return done_; }
  void complete() final {
    done_ = true;
    is_queued_ = false;
    if (coroutine_) return std::exchange(coroutine_, nullptr).resume();
    if (!callback_) return;
    auto callback = std::exchange(callback_, nullptr);
    callback(take());  // may destroy this object
  }
  // Sets the callback.  If the command is done already, the loop calls the callback later.
  void set_callback(std::move_only_function<void(Outcome<T>)> callback) {
    callback_ = std::move(callback);
    if (!done_ || is_queued_) return;
    is_queued_ = true;
    loop_.finish_later(*this);
  }
  void set_coroutine(std::coroutine_handle<> frame) { coroutine_ = frame; }
  void wait() {
    if (done_) return;
    vb_requests_wait(loop_.requests(), this);
    done_ = true;
  }
  // Cancels the command.  If its result was not taken, the created object is destroyed.
  void cancel() {
    if (is_queued_) loop_.remove_finished(*this);
    if (!done_) {
      vb_requests_cancel(loop_.requests(), this);
    } else if (!result_taken_) {
      static_cast<void>(take());
    }
  }
  Outcome<T> take() {
    result_taken_ = true;
    if (status != 0) return failure(status, text);
    return result();
  }

 protected:
  virtual Outcome<T> result() = 0;
  Loop& loop_;

 private:
  bool done_ = false;
  bool is_queued_ = false;  // the loop has queued this command, to complete it later
  bool result_taken_ = false;
  std::move_only_function<void(Outcome<T>)> callback_{};
  std::coroutine_handle<> coroutine_{};
};

// Returns the arguments of a command for the C API: `args` itself, or its member `value`.  Other
// members of `args` are objects that must live as long as the command.
template <class Args>
auto& c_api_of(Args& args) {
  if constexpr (requires { args.value; }) {
    return args.value;
  } else {
    return args;
  }
}

template <class T, class Args, class MakeResult>
class StartedCommandWith final : public StartedCommand<T> {
 public:
  StartedCommandWith(Loop& loop, vb_command code, Args args, MakeResult make_result)
      : StartedCommand<T>(loop), args_(std::move(args)), make_result_(std::move(make_result)) {
    this->command = code;
    this->arguments = &c_api_of(args_);
    this->submit();
  }

 private:
  Outcome<T> result() override { return make_result_(this->loop_, args_); }
  Args args_;
  MakeResult make_result_;
};

}  // namespace detail

// Represents a command, which may end at once or later.  Its outcome is delivered exactly once, in
// one of three ways, and never inside the call that started the command:
//
//     request.then([](Outcome<T> outcome) { ... });  // runs in the loop; keep the request
//     Outcome<T> outcome = co_await device.create_pd();
//     Outcome<T> outcome = device.create_pd().wait();
//
// wait() does not run the loop, so it may be used anywhere, even in callbacks of the loop.
//
// Destroying the request cancels the command: its outcome is not delivered.  A command that was not
// carried out yet will not be carried out.  Otherwise the object that the command created is
// destroyed.
template <class T>
class [[nodiscard]] Request {
 public:
  explicit Request(std::unique_ptr<detail::StartedCommand<T>> command)
      : command_(std::move(command)) {}
  Request(Request&&) noexcept = default;
  Request& operator=(Request&& other) noexcept {
    if (this != &other) {
      cancel();
      command_ = std::move(other.command_);
    }
    return *this;
  }
  ~Request() { cancel(); }

  // Returns true if the command is done, so that wait() and co_await do not wait.
  bool done() const { return command_->done(); }

  // Passes the outcome to `callback`, which may do anything, even destroy this request.
  void then(std::move_only_function<void(Outcome<T>)> callback) {
    command_->set_callback(std::move(callback));
  }

  // Returns the outcome.  Waits for the agent or the adapter, never for a peer.
  Outcome<T> wait() && {
    command_->wait();
    return command_->take();
  }

  auto operator co_await() && {
    struct Awaiter {
      detail::StartedCommand<T>& command;
      bool await_ready() const { return command.done(); }
      void await_suspend(std::coroutine_handle<> frame) { command.set_coroutine(frame); }
      Outcome<T> await_resume() { return command.take(); }
    };
    return Awaiter{*command_};
  }

 private:
  void cancel() {
    if (command_) command_->cancel();
  }
  std::unique_ptr<detail::StartedCommand<T>> command_;
};

namespace detail {

// Submits a command.  If it succeeds, `make_result(loop, arguments)` makes its Outcome<T>.
template <class T, class Args, class MakeResult>
Request<T> submit(Loop& loop, vb_command code, Args args, MakeResult make_result) {
  return Request<T>(std::make_unique<StartedCommandWith<T, Args, MakeResult>>(
      loop, code, std::move(args), std::move(make_result)));
}

// Submits a command without a result.
template <class Args, class Fill>
Request<void> submit_plain(Loop& loop, vb_command code, Fill fill) {
  Args args{};
  fill(args);
  return submit<void>(loop, code, args, [](Loop&, Args&) -> Outcome<void> { return {}; });
}

}  // namespace detail

}  // namespace verbena
