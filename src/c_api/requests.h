#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/error.h"
#include "base/handle.h"
#include "os/event_fd.h"
#include "verbena/c_api_requests.h"

namespace verbena::c_api {

// Holds the submitted commands: pending ones, and completed ones that the caller has not taken yet.
//
// The requests are memory of the caller and form a list, so that the queue allocates nothing.  Any
// thread may call any function.
class RequestQueue {
 public:
  static Result<std::unique_ptr<RequestQueue>> create();
  explicit RequestQueue(os::EventFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.fd(); }

  // Adds a request.  Call it before the command starts: another thread may complete the command at
  // once.
  void begin(vb_request& request);
  // Removes a request whose command was done at once or refused.
  void end(vb_request& request);
  // Completes the command: next() and wait() find the request from now on.
  void finish(vb_request& request, int status, std::string_view text);

  // Takes the next completed request; returns null if there is none.
  vb_request* next();
  // Waits until the request is done, and takes it.
  void wait(vb_request& request);
  // Removes a request.  Returns false if the request is not in the queue.  Sets *was_done to true
  // if the command was carried out already.
  bool cancel(vb_request& request, bool* was_done);
  // Returns true while the queue holds requests.
  bool busy() const;

 private:
  enum State : std::uint32_t { kNone, kPending, kDone };

  void remove_completed(vb_request& request);

  os::EventFd fd_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  vb_request* first_ = nullptr;    // the list of completed requests, oldest first
  vb_request** last_ = &first_;    // points to the pointer that ends the list
  std::size_t request_count_ = 0;  // the number of pending and completed requests
};

// Identifies the request of an asynchronous command.  Functions get a pointer to a Submission.  If
// the pointer is null, the function blocks until it has the result.
struct Submission {
  RequestQueue& queue;
  vb_request& request;
};

// Owns the queues of a program.  Any thread may call any function.  REQUIRES: no thread uses a
// queue while the queue is destroyed.
class RequestQueues {
 public:
  // Returns the queues of this process.  They exist before the device is open, because opening it
  // is a request, too.  A forked child has queues of its own.
  static RequestQueues& of_process();

  Result<Handle<RequestQueue>> create();
  RequestQueue* find(vb_handle queue) const { return all_.find({queue}); }
  // Destroys a queue.  kBusy: requests are pending, or have not been taken.
  Result<void> destroy(vb_handle queue);

 private:
  static constexpr std::uint32_t kMax = 4096;

  std::mutex mutex_;
  Slots<RequestQueue> all_{kMax};
};

// Writes the result into a request.
void settle(vb_request& request, int status, std::string_view text);

}  // namespace verbena::c_api
