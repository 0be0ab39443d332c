#pragma once

#include <cstdint>
#include <expected>
#include <source_location>
#include <utility>

// How failure is said everywhere in the stack.  Whatever the outside can cause (a peer, a program,
// a file, the kernel) comes back as a Result; whatever only a bug of ours can cause is a VB_CHECK.
namespace verbena {

// What a caller can act on.  The layer's own detail (a CM REJ reason, an errno, a wire drop
// reason) travels in Error::detail instead of in more codes.
enum class Errc : std::uint8_t {
  kInvalidArgument,  // the request makes no sense as it stands
  kBadHandle,        // forged, stale, or of another kind
  kBadState,         // right request, wrong moment (vol1 state tables)
  kBusy,             // other objects stand on this one; nothing was changed
  kNoResources,      // a named limit was reached; the context names it
  kNotSupported,     // not built, or not there on this device
  kAddressInUse,     // port or service id taken
  kAddressNotFound,  // not an address of this host, or no route
  kUnreachable,      // the peer did not answer; detail = how it ended
  kRejected,         // the peer said no; detail = CM REJ reason (vol1 12.6.7)
  kTimedOut,         // an answer did not come in time
  kMalformed,        // bytes from outside that the specification does not allow
  kFault,            // memory of the caller that is not there
  kCancelled,        // the caller dropped the operation
  kDeviceFatal,      // the agent is gone; what stood on it is over
  kPermission,       // not allowed for this user
  kSystem,           // the kernel said no; detail = errno
};

// A name for logs and messages, never null.
const char* to_string(Errc code);

// Small and trivially copyable: it is returned on the data path, too.
struct Error {
  Errc code{};
  std::uint16_t detail = 0;
  const char* context = "";  // static text for messages; equality ignores it and the next
  bool from_agent = false;   // the agent refused a request; process::Process has its text

  friend constexpr bool operator==(const Error& a, const Error& b) {
    return a.code == b.code && a.detail == b.detail;
  }
};

// The errno that the C interfaces give for an error.
int to_errno(const Error& error);

// std::expected with the [[nodiscard]] that GCC 12's lacks.
template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
 public:
  using std::expected<T, Error>::expected;
};

constexpr std::unexpected<Error> fail(Errc code, const char* context = "",
                                      std::uint16_t detail = 0) {
  return std::unexpected<Error>(Error{.code = code, .detail = detail, .context = context});
}

// The value of a Result, or a return of its error from the function around it.
// Not in coroutines: GCC 12 cannot compile co_await inside a statement expression.
#define VB_TRY(...)                                                     \
  __extension__({                                                       \
    auto&& vb_try_value = (__VA_ARGS__);                                \
    if (!vb_try_value.has_value()) {                                    \
      return ::std::unexpected<::verbena::Error>(vb_try_value.error()); \
    }                                                                   \
    *::std::forward<decltype(vb_try_value)>(vb_try_value);              \
  })

// The same where there is no value to take.
#define VB_TRY_VOID(...)                                                  \
  do {                                                                    \
    if (auto&& vb_try_value = (__VA_ARGS__); !vb_try_value.has_value()) { \
      return ::std::unexpected<::verbena::Error>(vb_try_value.error());   \
    }                                                                     \
  } while (false)

// Prints the place and aborts.
[[noreturn]] void check_failed(const char* condition,
                               std::source_location where = std::source_location::current());

// Stops the program, in release builds too, when a promise of our own code is broken.
#define VB_CHECK(condition) ((condition) ? void() : ::verbena::check_failed(#condition))

}  // namespace verbena
