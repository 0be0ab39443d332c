#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace verbena::os {

// A system call past the C library's wrapper.  Many wrappers (read, close, poll, sendmsg, ...) are
// cancellation points: a pthread_cancel() of the program would unwind through the middle of ours.
// Gives -1 and errno, as the wrapper would.
template <class... Arguments>
long system_call(long number, Arguments... arguments) {
  return ::syscall(number, arguments...);
}

// The same, again after each EINTR.
template <class... Arguments>
long repeat_call(long number, Arguments... arguments) {
  for (;;) {
    const long result = ::syscall(number, arguments...);
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace verbena::os
