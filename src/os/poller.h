#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/time.h"
#include "os/fd.h"

namespace verbena::os {

// Waits for many descriptors, level-triggered (epoll).  wait() is one thread's; add() and remove()
// may be called from any thread.
class Poller {
 public:
  struct Ready {
    std::uint64_t token = 0;
    bool readable = false;  // also: error or hang-up, which a read will tell
    bool writable = false;
  };

  static Result<Poller> create();

  // The poller's own descriptor, readable while something is ready: for a foreign loop.
  int fd() const { return fd_.get(); }

  Result<void> add(int fd, std::uint64_t token, bool readable = true, bool writable = false);
  Result<void> change(int fd, std::uint64_t token, bool readable, bool writable);
  // Before the descriptor is closed: while a copy of it lives, closing does not remove.
  Result<void> remove(int fd);

  // What it watches stays watched through the copies of it that others hold.
  void close() { fd_.reset(); }

  // Fills `out` and gives how many; 0 when the deadline came first, or a signal handler ran.
  // Not a cancellation point.
  std::size_t wait(std::span<Ready> out, Time deadline);

 private:
  explicit Poller(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
  bool no_pwait2_ = false;  // the kernel has said so
};

}  // namespace verbena::os
