#pragma once

#include <pthread.h>

namespace verbena::os {

// Disables thread cancellation in a scope.  A function that must not be a cancellation point needs
// this class if it calls a cancellation point, such as ppoll().
class NoCancellation {
 public:
  NoCancellation() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old_state_); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;
  ~NoCancellation() { ::pthread_setcancelstate(old_state_, nullptr); }

 private:
  int old_state_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace verbena::os
