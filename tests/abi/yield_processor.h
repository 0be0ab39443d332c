#pragma once

#include <chrono>
#include <thread>

namespace fake {

// Lets other threads run, so that they probably reach a call that waits.  Yields 2000 times, but
// for at most 100 ms, because on a busy machine each yield may take milliseconds, and a few yields
// are enough.
inline void yield_processor() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  for (int i = 0; i < 2000 && std::chrono::steady_clock::now() < end; ++i) {
    std::this_thread::yield();
  }
}

}  // namespace fake
