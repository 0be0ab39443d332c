#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace verbena::os {

// Makes a system call without the C library's wrapper.  Many wrappers (read, close, poll, sendmsg,
// ...) are cancellation points: a pthread_cancel() by the program would unwind through the middle
// of our functions.  Returns -1 and sets errno, as the wrapper would.
template <class... Arguments>
long system_call(long number, Arguments... arguments) {
  return ::syscall(number, arguments...);
}

// Does the same as system_call(), but repeats the call after each EINTR.
template <class... Arguments>
long repeat_call(long number, Arguments... arguments) {
  for (;;) {
    const long result = ::syscall(number, arguments...);
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace verbena::os
