#pragma once

#include <new>
#include <string_view>

#include "base/error.h"

// What the functions of the border (verbena/border.h) have in common, whoever is behind it.
namespace verbena::border {

// Of this thread; never null.
const char* last_error();
void set_last_error(std::string_view text);
// Remembers the error's text, and gives its errno.
int failed(const Error& error);
// From now on `told` hears of each of these, in the thread that has failed; it may hold locks.
void set_told(void (*told)(const Error& error));
inline int result_of(const Result<void>& result) { return result ? 0 : failed(result.error()); }

// Runs a C function's body; what little of ours can be thrown becomes an errno.  Cancellation
// passes through.
template <class Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return to_errno({Errc::kNoResources});
  }
}

// Switches thread cancellation off for a scope: waiting for the agent is not a cancellation point.
class NoCancellation {
 public:
  NoCancellation();
  ~NoCancellation();
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = 0;
};

}  // namespace verbena::border
