#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

// Defines the coroutine type of the API.
namespace verbena {

template <class T>
class Task;

namespace detail {

struct PromiseBase {
  std::coroutine_handle<> caller = std::noop_coroutine();
  std::exception_ptr thrown{};

  std::suspend_always initial_suspend() noexcept { return {}; }
  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> own) noexcept {
      return own.promise().caller;
    }
    void await_resume() noexcept {}
  };
  FinalAwaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() { thrown = std::current_exception(); }
  void rethrow() const {
    if (thrown) std::rethrow_exception(thrown);
  }
};

template <class T>
struct Promise : PromiseBase {
  std::optional<T> result{};
  Task<T> get_return_object();
  template <class U>
  void return_value(U&& value) {
    result.emplace(std::forward<U>(value));
  }
  T take() {
    rethrow();
    return *std::move(result);
  }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object();
  void return_void() {}
  void take() const { rethrow(); }
};

}  // namespace detail

// Represents a coroutine.  It starts when it is awaited, or passed to Loop::run() or Loop::spawn().
// Destroying it cancels the operation that it waits for.  One thread at a time may use it.
//
// Write coroutines as named functions.  Pass arguments by value, or make sure that they live longer
// than the coroutine.  Captures of a lambda are destroyed with the lambda.
template <class T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::Promise<T>;

  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (frame_) frame_.destroy();
      frame_ = std::exchange(other.frame_, nullptr);
    }
    return *this;
  }
  ~Task() {
    if (frame_) frame_.destroy();
  }

  bool done() const { return frame_.done(); }
  // Runs the coroutine until it waits for the first time.  Loop calls this; programs await the
  // task.
  void start() const { frame_.resume(); }
  // Returns the result, or throws the exception of the coroutine.  REQUIRES: done().
  T take() { return frame_.promise().take(); }

  auto operator co_await() && {
    struct Awaiter {
      std::coroutine_handle<promise_type> frame;
      bool await_ready() const { return frame.done(); }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) {
        frame.promise().caller = caller;
        return frame;
      }
      T await_resume() { return frame.promise().take(); }
    };
    return Awaiter{frame_};
  }

 private:
  std::coroutine_handle<promise_type> frame_;
};

namespace detail {
template <class T>
Task<T> Promise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}
}  // namespace detail

}  // namespace verbena
