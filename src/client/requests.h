#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/error.h"
#include "base/operation.h"
#include "os/event_fd.h"
#include "verbena/border.h"

namespace verbena::client {

// Submitted commands: those that are pending, and those that are done and wait to be taken.
//
// The requests are the caller's memory and linked through it, so that none is lost for want of
// memory.  Threads: hold() and drop() under the drive lock, to which what a Pending refers to
// belongs; all else anywhere.
class RequestQueue {
 public:
  static Result<std::unique_ptr<RequestQueue>> create();
  explicit RequestQueue(os::EventFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.fd(); }

  // Before the command is started: it may be done before begin's caller goes on.
  void begin(vb_request& request);
  // It was done at once, or refused: as if it had not been begun.
  void end(vb_request& request);
  // It is done.
  void finish(vb_request& request, int status, std::string_view text);

  vb_request* next();
  void wait(vb_request& request);
  // False: the queue knows no such request.  `was_done`: it was carried out.
  bool cancel(vb_request& request, bool* was_done);
  bool busy() const;

  void hold(vb_request& request, Pending pending) { held_[&request] = std::move(pending); }
  void drop(vb_request& request) { held_.erase(&request); }

 private:
  enum State : std::uint32_t { kNone, kPending, kDone };

  void take(vb_request& request);

  os::EventFd fd_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  vb_request* first_ = nullptr;  // done, oldest first
  vb_request** last_ = &first_;
  std::size_t known_ = 0;
  std::map<vb_request*, Pending> held_;  // under the drive lock
};

// A command that is submitted, as the border's functions hand it on; nullptr: it is waited for.
struct Submission {
  RequestQueue& queue;
  vb_request& request;
};

// Puts the outcome into a request.
void settle(vb_request& request, int status, std::string_view text);

}  // namespace verbena::client
