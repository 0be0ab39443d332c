#pragma once

#include <cerrno>
#include <expected>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include "verbena/standard.h"  // stops with one clear error if the compiler does not use C++23

// Defines the errors of the C++ API.
namespace verbena {

// Describes a failure.  `code` is for programs.  `text` is for people: one line that names the
// object, or the peer, the step and its duration, as far as they are known.
//
//   device_or_resource_busy   other objects use the object (the text names them); nothing changed
//   no_such_device            the agent has died (the next command finds or starts another one), or
//                             there is no usable adapter
//   invalid_argument          the arguments are wrong, or the object is destroyed
//   not_enough_memory         a limit was reached; the text names it
//   operation_not_supported   this device does not support the operation
//   operation_canceled        the handle of the operation was destroyed before it completed
struct Failure {
  std::errc code{};
  std::string text;
};

template <class T>
using Outcome = std::expected<T, Failure>;

// Makes a failure from an errno value and a text.  A null or empty text stands for the standard
// text of the errno value.  Any thread may call this function.
inline std::unexpected<Failure> failure(int error, const char* text) {
  const auto code = static_cast<std::errc>(error);
  return std::unexpected(Failure{
      code, text == nullptr || *text == '\0' ? std::make_error_code(code).message() : text});
}

// Carries a failure as an exception, which value_of() throws.  what() returns the failure's text.
class FailureError : public std::runtime_error {
 public:
  explicit FailureError(const Failure& failure)
      : std::runtime_error(failure.text), code_(failure.code) {}
  std::errc code() const { return code_; }

 private:
  std::errc code_;
};

// Returns the value, or throws the failure as FailureError.
template <class T>
T value_of(Outcome<T> outcome) {
  if (!outcome) throw FailureError(outcome.error());
  if constexpr (!std::is_void_v<T>) return *std::move(outcome);
}

}  // namespace verbena
