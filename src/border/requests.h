#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/error.h"
#include "base/handle.h"
#include "os/event_fd.h"
#include "verbena/border_requests.h"

namespace verbena::border {

// Submitted commands: those that are pending, and those that are done and wait to be taken.
//
// The requests are the caller's memory and linked through it, so that none is lost for want of
// memory.  Any thread.
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

 private:
  enum State : std::uint32_t { kNone, kPending, kDone };

  void take(vb_request& request);

  os::EventFd fd_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  vb_request* first_ = nullptr;  // done, oldest first
  vb_request** last_ = &first_;
  std::size_t known_ = 0;
};

// A command that is submitted, as the border's functions hand it on; nullptr: it is waited for.
struct Submission {
  RequestQueue& queue;
  vb_request& request;
};

// The queues of a program.  Any thread; a queue is not destroyed while another thread uses it.
class RequestQueues {
 public:
  Result<Handle<RequestQueue>> create();
  RequestQueue* find(vb_handle queue) const { return all_.find({queue}); }
  // kBusy: requests are pending, or wait.
  Result<void> destroy(vb_handle queue);

 private:
  static constexpr std::uint32_t kMax = 4096;

  std::mutex mutex_;
  Slots<RequestQueue> all_{kMax};
};

// Puts the outcome into a request.
void settle(vb_request& request, int status, std::string_view text);

}  // namespace verbena::border
