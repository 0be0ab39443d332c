#pragma once

#include <cstdint>
#include <expected>
#include <source_location>
#include <utility>

// Defines the errors of the whole stack.  A failure that the outside can cause (a peer, a program,
// a file, the kernel) is returned as a Result.  A failure that only our own bug can cause is a
// VB_CHECK.
namespace verbena {

// Tells a caller what kind of failure it must handle.  Error::detail is the exact errno, if it is
// not 0.  Two codes have another detail: kRejected and kMalformed.
enum class Errc : std::uint8_t {
  kInvalidArgument,  // an argument of the request is invalid
  kBadHandle,        // the handle is forged, stale, or of another kind of object
  kBadState,         // the object's state does not allow the request (vol1 state tables)
  kBusy,             // other objects use this object, so nothing was changed
  kNoResources,      // a limit was reached; the context describes it
  kNotSupported,     // not implemented, or missing on this device or host
  kAddressInUse,     // the port, the service id or the method of a MAD class is in use
  kAddressNotFound,  // the address is unknown, is not one of this host, or has no route to it
  kUnreachable,      // the peer or the subnet cannot be reached, for example if a port is down
  kRejected,         // the peer refused; detail = CM REJ reason (vol1 12.6.7) or MAD status
  kTimedOut,         // an answer did not come in time
  kMalformed,        // the specification does not allow these bytes; detail = the layer's reason
  kFault,            // the caller's memory is not mapped
  kCancelled,        // the caller dropped the operation
  kDeviceFatal,      // the agent has ended, and the objects that depended on it have failed
  kPermission,       // the user lacks the permission
  kSystem,           // a system call failed; detail = errno
};

// Returns the code's name for logs and messages, never null.
const char* to_string(Errc code);

// Error is small and trivially copyable, because the data path returns it as well.
struct Error {
  Errc code{};
  std::uint16_t detail = 0;
  const char* context = "";  // static text for messages; operator== ignores this member
  bool from_agent = false;   // the agent refused the request; process::Process has the agent's text

  friend constexpr bool operator==(const Error& a, const Error& b) {
    return a.code == b.code && a.detail == b.detail;
  }
};

// Returns the errno that the C interfaces give for an error: that of its detail, or of its code.
int to_errno(const Error& error);

// Adds [[nodiscard]] to std::expected, because the std::expected of GCC 12 lacks it.
template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
 public:
  using std::expected<T, Error>::expected;
};

constexpr std::unexpected<Error> fail(Errc code, const char* context = "",
                                      std::uint16_t detail = 0) {
  return std::unexpected<Error>(Error{.code = code, .detail = detail, .context = context});
}

// Gives the value of a Result, or returns its error from the enclosing function.  Do not use this
// macro in coroutines: GCC 12 cannot compile co_await inside a statement expression.
#define VB_TRY(...)                                                     \
  __extension__({                                                       \
    auto&& vb_try_value = (__VA_ARGS__);                                \
    if (!vb_try_value.has_value()) {                                    \
      return ::std::unexpected<::verbena::Error>(vb_try_value.error()); \
    }                                                                   \
    *::std::forward<decltype(vb_try_value)>(vb_try_value);              \
  })

// Returns the error of a Result from the enclosing function, if there is one.  Ignores a value.
#define VB_TRY_VOID(...)                                                  \
  do {                                                                    \
    if (auto&& vb_try_value = (__VA_ARGS__); !vb_try_value.has_value()) { \
      return ::std::unexpected<::verbena::Error>(vb_try_value.error());   \
    }                                                                     \
  } while (false)

// Prints the condition that does not hold and its place in the source, and aborts.
[[noreturn]] void check_failed(const char* condition,
                               std::source_location where = std::source_location::current());

// Stops the program, also in release builds, when an invariant of our own code does not hold.
#define VB_CHECK(condition) ((condition) ? void() : ::verbena::check_failed(#condition))

}  // namespace verbena
