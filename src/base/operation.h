#pragma once

#include <functional>
#include <utility>
#include <variant>

#include "base/error.h"

// Commands as asynchronous requests.  Starting one gives either its result, at once, or a Pending;
// in the second case the completion runs later, exactly once, never inside the call that started
// it.
namespace verbena {

template <class T>
using Completion = std::move_only_function<void(Result<T>)>;

// A request under way, in the hands of whoever started it.  Dropping it cancels: the completion is
// then never called.  After completion, dropping does nothing.
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

// Done at once, or pending.
template <class T>
using Started = std::variant<Result<T>, Pending>;

}  // namespace verbena
