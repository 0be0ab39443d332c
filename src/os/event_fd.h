#pragma once

#include "base/error.h"
#include "os/fd.h"

// Descriptors that say "there is something".  All functions from any thread.
namespace verbena::os {

// What completion, event and asynchronous channels show to a program: readable from post() until it
// is taken, level-triggered; many posts are one.  It is made blocking, as the kernel's device files
// are; the program may set O_NONBLOCK on it.
class EventFd {
 public:
  static Result<EventFd> create();

  int fd() const { return fd_.get(); }

  void post();
  // Takes what was posted, if something was; does not wait, whatever the flags of the descriptor.
  bool try_take();
  // False: the kernel cannot do that (before Linux 5.8), and try_take() waits for the next post if
  // another thread takes this one meanwhile.
  bool never_waits() const { return never_waits_; }
  // read(2) of it: 0, or EAGAIN if the user set O_NONBLOCK, or EINTR after a signal handler, as
  // the kernel's device does.  A cancellation point, the only one of this layer: the caller's
  // frames must let it through, and something may have been taken when it unwinds (glibc before
  // 2.41).
  int take_blocking();

 private:
  explicit EventFd(Fd fd);

  Fd fd_;
  bool never_waits_;
};

// Wakes a thread that sleeps in a Poller.  Many wakes are one.
class WakeFd {
 public:
  static Result<WakeFd> create();

  int fd() const { return fd_.get(); }
  void wake();
  // Back to quiet.  Look for work after it, not before.
  void clear();
  void close() { fd_.reset(); }

 private:
  explicit WakeFd(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace verbena::os
