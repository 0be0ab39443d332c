#pragma once

#include <utility>

#include "base/error.h"
#include "base/time.h"
#include "os/fd.h"

// Provides descriptors that become readable to signal an event.  Any thread may call any function.
namespace verbena::os {

// Owns the descriptor that a program gets for a completion channel, an event channel or
// asynchronous events.  It is readable from post() until a thread takes the event; several posts
// count as one, but each gives an edge (EPOLLET).  It is created blocking, as the kernel's device
// files are; the program may set O_NONBLOCK on it.
class EventFd {
 public:
  static Result<EventFd> create();

  int fd() const { return fd_.get(); }

  void post();
  // Takes the posted event.  Returns false if there is none.  Never waits, whatever the
  // descriptor's flags are, unless try_take_never_waits() returns false.
  bool try_take();
  // Returns false before Linux 5.8, because such a kernel cannot read an eventfd without waiting.
  // Then try_take() waits for the next post if another thread takes the event first.
  bool try_take_never_waits() const { return never_waits_; }
  // Calls read(2) on the descriptor.  Returns 0, or EAGAIN if the user set O_NONBLOCK, or EINTR
  // after a signal handler, as the kernel's device does.  The call is a cancellation
  // point on purpose, so the calling functions must allow unwinding (no noexcept).  A cancelled
  // thread may have taken the event already (glibc before 2.41).
  int take_blocking();

 private:
  explicit EventFd(Fd fd);

  Fd fd_;
  bool never_waits_;
};

// Wakes a thread that sleeps in a Poller.  Several wakes count as one.
class WakeFd {
 public:
  static Result<WakeFd> create();
  // Takes over the descriptor of a WakeFd that another process has sent.
  static WakeFd adopt(Fd fd) { return WakeFd(std::move(fd)); }

  int fd() const { return fd_.get(); }
  void wake();
  // Makes the descriptor unreadable again.  Check for work after this call, not before it.
  void clear();
  void close() { fd_.reset(); }

 private:
  explicit WakeFd(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

// Owns one of two connected ends by which two processes of different users wake each other.  The
// processes cannot use an eventfd: they would share its flags and its count, so that one could make
// the other's calls wait.  This end does not become readable when the other process ends.
class WakeSocket {
 public:
  static Result<std::pair<WakeSocket, WakeSocket>> create_pair();
  // Takes over an end that another process has sent.  kMalformed: the descriptor is not an end of a
  // WakeSocket.
  static Result<WakeSocket> adopt(Fd fd);

  int fd() const { return fd_.get(); }
  // Makes the other end readable.  Never waits.
  void wake();
  // Makes this end unreadable again.  Check for work after this call, not before it.  If the other
  // process calls wake() without pause, this end may remain readable.
  void clear();
  void close() { fd_.reset(); }

 private:
  explicit WakeSocket(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

// Wakes a thread that sleeps in a Poller at a given time.
class TimerFd {
 public:
  static Result<TimerFd> create();

  int fd() const { return fd_.get(); }
  // Makes the descriptor readable at this time, instead of the time that was set before.
  void set(Time time);
  // Makes the descriptor unreadable again.
  void clear();
  void close() { fd_.reset(); }

 private:
  explicit TimerFd(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace verbena::os
