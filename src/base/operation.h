#pragma once

#include <functional>
#include <utility>
#include <variant>

#include "base/error.h"

// Represents commands as asynchronous requests.  The call that starts a request returns either its
// result or a Pending.  With a Pending, the completion runs once, after that call has returned,
// unless the caller cancels the request first.
namespace verbena {

template <class T>
using Completion = std::move_only_function<void(Result<T>)>;

// Represents a request under way, owned by the caller that started it.  Destroying a Pending
// cancels the request: the completion is then never called.  After the completion, destroying the
// Pending does nothing.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  explicit Pending(std::move_only_function<void()> cancel) : cancel_(std::move(cancel)) {}
  Pending(Pending&& other) noexcept : cancel_(std::exchange(other.cancel_, nullptr)) {}
  Pending& operator=(Pending&& other) noexcept {
    if (this != &other) {
      cancel();
      cancel_ = std::exchange(other.cancel_, nullptr);
    }
    return *this;
  }
  ~Pending() { cancel(); }

  void cancel() {
    if (auto call = std::exchange(cancel_, nullptr)) call();
  }

 private:
  std::move_only_function<void()> cancel_;
};

// Holds the result of a request that was done at once, or the Pending of a request under way.
template <class T>
using Started = std::variant<Result<T>, Pending>;

}  // namespace verbena
