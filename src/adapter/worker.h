#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "c_api/requests.h"
#include "verbena/c_api_requests.h"

namespace verbena::adapter {

// Carries out submitted commands in its own thread, one after the other.  The submitting thread
// never waits, even if the kernel takes long, for example to pin memory.
class Worker {
 public:
  // `call` carries out a command.  `undo` destroys the object that a command has created.
  struct Functions {
    int (*call)(vb_request&);
    void (*undo)(vb_request&);
  };

  // Returns the worker of this process.  Fails with kSystem if the worker's thread cannot be
  // started.
  static Result<Worker*> get();
  // Starts a worker, which never ends.
  static Result<Worker*> start(const Functions& functions);

  explicit Worker(const Functions& functions) : functions_(functions) {}

  // Queues a command.  For VB_MR_PREFETCH, and for VB_CM_BIND to VB_CM_ANSWER_PATH, copies the
  // arguments and the data that the arguments point to.
  void submit(c_api::RequestQueue& queue, vb_request& request);
  // Cancels a command.  If the command is done already, undoes it.  If the command is being carried
  // out, this call waits for the kernel, but never for a peer.  kBadHandle: the request is not in
  // the queue.
  Result<void> cancel(c_api::RequestQueue& queue, vb_request& request);

 private:
  struct Copies;
  struct Job {
    c_api::RequestQueue* queue;
    vb_request* request;
    std::unique_ptr<Copies, void (*)(Copies*)> copies;
  };

  void run();

  const Functions functions_;
  std::mutex mutex_;
  std::condition_variable submitted_, done_;
  std::deque<Job> jobs_;
  const vb_request* running_ = nullptr;
};

}  // namespace verbena::adapter
