#pragma once

#include <cerrno>
#include <expected>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include "verbena/standard.h"  // first: the others need it

// How the C++ API says that something did not work.
namespace verbena {

// `code` is what a program can act on; `text` is for people: which object, peer and step, and how
// long it took, in one line.
//
//   device_or_resource_busy   others stand on the object, and the text says which; nothing changed
//   no_such_device            the agent has died; the next command finds or starts another
//   invalid_argument          it makes no sense as it stands, or the object is gone
//   not_enough_memory         a named limit was reached
//   operation_not_supported   not there on this device
//   operation_canceled        its handle was dropped
struct Failure {
  std::errc code{};
  std::string text;
};

template <class T>
using Outcome = std::expected<T, Failure>;

inline std::unexpected<Failure> failure(int error, const char* text) {
  const auto code = static_cast<std::errc>(error);
  return std::unexpected(Failure{
      code, text == nullptr || *text == '\0' ? std::make_error_code(code).message() : text});
}

// For programs that would rather throw: the value, or the failure as an exception, whose what() is
// its text.
class Refused : public std::runtime_error {
 public:
  explicit Refused(const Failure& failure)
      : std::runtime_error(failure.text), code_(failure.code) {}
  std::errc code() const { return code_; }

 private:
  std::errc code_;
};

template <class T>
T value_of(Outcome<T> outcome) {
  if (!outcome) throw Refused(outcome.error());
  if constexpr (!std::is_void_v<T>) return *std::move(outcome);
}

}  // namespace verbena
