#pragma once

#include <new>
#include <string_view>

#include "base/error.h"
#include "os/no_cancellation.h"

// Provides helpers for all implementations of the C API (verbena/c_api.h).
namespace verbena::c_api {

// Returns the last error of this thread; never null.
const char* last_error();
void set_last_error(std::string_view text);
// Stores the error's text as the thread's last error, and calls the listener.  Returns the error's
// errno.
int failed(const Error& error);
// Lets failed() call `listener`, in the thread that failed, which may hold locks.
void set_error_listener(void (*listener)(const Error& error));
inline int result_of(const Result<void>& result) { return result ? 0 : failed(result.error()); }

// Runs the body of a C function.  std::bad_alloc becomes ENOMEM; thread cancellation passes
// through.
template <class Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return failed({Errc::kNoResources, 0, "no memory"});
  }
}

// Calls that wait for the agent use this class, because they must not be cancellation points.
using os::NoCancellation;

}  // namespace verbena::c_api
