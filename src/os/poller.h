#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/time.h"
#include "os/fd.h"

namespace verbena::os {

// Waits for many descriptors, level-triggered (epoll).  Only one thread may call wait(); any thread
// may call add(), change() and remove().
class Poller {
 public:
  struct Ready {
    std::uint64_t token = 0;
    bool readable = false;  // true also for an error or hang-up, which a read will report
    bool writable = false;
  };

  static Result<Poller> create();

  // Returns the poller's own descriptor, which is readable while a watched descriptor is ready.
  // Other event loops can wait for it.
  int fd() const { return fd_.get(); }

  Result<void> add(int fd, std::uint64_t token, bool readable = true, bool writable = false);
  Result<void> change(int fd, std::uint64_t token, bool readable, bool writable);
  // REQUIRES: `fd` is still open.  Closing a descriptor does not remove it while a copy is open.
  Result<void> remove(int fd);

  // Closes the poller's own descriptor.  Copies of it still watch the same descriptors.
  void close() { fd_.reset(); }

  // Fills `out` with at most 64 entries, and returns their number; 0 if the deadline passed first
  // or a signal handler ran.  Not a cancellation point.
  std::size_t wait(std::span<Ready> out, Time deadline);

 private:
  explicit Poller(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
  bool lacks_pwait2_ = false;  // epoll_pwait2() has failed, so wait() does not try it again
};

}  // namespace verbena::os
