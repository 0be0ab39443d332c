#pragma once

#include <pthread.h>

namespace verbena::preload {

// Keeps the thread from being cancelled (pthread_cancel) in a function of the C library that is not
// a cancellation point, while this library's version calls functions that are.
class NoCancellation {
 public:
  NoCancellation() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;
  ~NoCancellation() { ::pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace verbena::preload
