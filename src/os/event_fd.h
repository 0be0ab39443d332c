#pragma once

#include "base/error.h"
#include "os/fd.h"

// Descriptors that say "there is something".  All functions from any thread.
namespace verbena::os {

// What completion, event and asynchronous channels show to a program: readable exactly while
// something waits, level-triggered (an eventfd that counts, EFD_SEMAPHORE).  It is made blocking,
// as the kernel's device files are; the program may set O_NONBLOCK on it.
class EventFd {
 public:
  static Result<EventFd> create();

  int fd() const { return fd_.get(); }

  // One more thing is there.
  void post();
  // Takes one if there is one; never waits, whatever the flags of the descriptor.
  bool try_take();
  // read(2) of one: 0, or EAGAIN if the user set O_NONBLOCK, or EINTR after a signal handler, as
  // the kernel's device does.  A cancellation point, the only one of this layer: nothing is taken
  // when it unwinds, and the caller's frames must let it through.
  int take_blocking();

 private:
  explicit EventFd(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
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
