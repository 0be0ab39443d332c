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
class Started : public Operation {
 public:
  explicit Started(Loop& loop) : loop_(loop) {}

  void submit() {
    const int now = vb_submit(loop_.requests(), this);
    done_ = now != EINPROGRESS;
  }
  bool done() const { return done_; }
  void tell() final {
    done_ = true;
    finishes_later_ = false;
    if (resumes_) return std::exchange(resumes_, nullptr).resume();
    if (!then_) return;
    auto then = std::exchange(then_, nullptr);
    then(take());  // may destroy this object
  }
  void call(std::move_only_function<void(Outcome<T>)> then) {
    then_ = std::move(then);
    if (!done_ || finishes_later_) return;
    finishes_later_ = true;
    loop_.finish_later(*this);
  }
  void resume(std::coroutine_handle<> frame) { resumes_ = frame; }
  void wait() {
    if (done_) return;
    vb_requests_wait(loop_.requests(), this);
    done_ = true;
  }
  // Cancels the command.  If its result was not taken, the created object is destroyed.
  void drop() {
    if (finishes_later_) loop_.forget_finished(*this);
    if (!done_) {
      vb_requests_cancel(loop_.requests(), this);
    } else if (!taken_) {
      static_cast<void>(take());
    }
  }
  Outcome<T> take() {
    taken_ = true;
    if (status != 0) return failure(status, text);
    return result();
  }

 protected:
  virtual Outcome<T> result() = 0;
  Loop& loop_;

 private:
  bool done_ = false;
  bool finishes_later_ = false;
  bool taken_ = false;
  std::move_only_function<void(Outcome<T>)> then_{};
  std::coroutine_handle<> resumes_{};
};

// Returns the arguments of a command for the C API.  They are `args` itself or its member `value`:
// other members of `args` are objects that must live as long as the command.
template <class Args>
auto& c_api_of(Args& args) {
  if constexpr (requires { args.value; }) {
    return args.value;
  } else {
    return args;
  }
}

template <class T, class Args, class Take>
class StartedWith final : public Started<T> {
 public:
  StartedWith(Loop& loop, vb_command code, Args args, Take take)
      : Started<T>(loop), args_(std::move(args)), take_(std::move(take)) {
    this->command = code;
    this->arguments = &c_api_of(args_);
    this->submit();
  }

 private:
  Outcome<T> result() override { return take_(this->loop_, args_); }
  Args args_;
  Take take_;
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
// Destroying the request cancels the command: its outcome is not delivered.  If the command was not
// carried out yet, it never is; if it was, the object that it created is destroyed.
template <class T>
class [[nodiscard]] Request {
 public:
  explicit Request(std::unique_ptr<detail::Started<T>> started) : started_(std::move(started)) {}
  Request(Request&&) noexcept = default;
  Request& operator=(Request&& other) noexcept {
    if (this != &other) {
      drop();
      started_ = std::move(other.started_);
    }
    return *this;
  }
  ~Request() { drop(); }

  // Returns true if the command is done, so that wait() and co_await do not wait.
  bool done() const { return started_->done(); }

  // Passes the outcome to `callback`, which may do anything, even destroy this request.
  void then(std::move_only_function<void(Outcome<T>)> callback) {
    started_->call(std::move(callback));
  }

  // Returns the outcome.  Waits for the agent or the adapter, never for a peer.
  Outcome<T> wait() && {
    started_->wait();
    return started_->take();
  }

  auto operator co_await() && {
    struct Awaiter {
      detail::Started<T>& started;
      bool await_ready() const { return started.done(); }
      void await_suspend(std::coroutine_handle<> frame) { started.resume(frame); }
      Outcome<T> await_resume() { return started.take(); }
    };
    return Awaiter{*started_};
  }

 private:
  void drop() {
    if (started_) started_->drop();
  }
  std::unique_ptr<detail::Started<T>> started_;
};

namespace detail {

// Submits a command.  If it succeeds, `take(loop, arguments)` makes its Outcome<T>.
template <class T, class Args, class Take>
Request<T> submit(Loop& loop, vb_command code, Args args, Take take) {
  return Request<T>(
      std::make_unique<StartedWith<T, Args, Take>>(loop, code, std::move(args), std::move(take)));
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
