#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "border/requests.h"
#include "verbena/border_requests.h"

namespace verbena::adapter {

// Carries out submitted commands, one after the other, in a thread of its own: the kernel may take
// its time, to pin memory for example, and who submits never waits.
class Worker {
 public:
  // How commands are carried out, and what one has made is ended.
  struct Hands {
    int (*call)(vb_request&);
    void (*undo)(vb_request&);
  };

  // The one of this process.  kSystem: no thread to be had.
  static Result<Worker*> get();
  // Never ends.
  static Result<Worker*> start(const Hands& hands);

  explicit Worker(const Hands& hands) : hands_(hands) {}

  // What the arguments name by address is copied.
  void submit(border::RequestQueue& queue, vb_request& request);
  // kBadHandle: the queue knows no such request.  Waits if it is just being carried out, which may
  // wait for the kernel, but for no peer.
  Result<void> cancel(border::RequestQueue& queue, vb_request& request);

 private:
  struct Copies;
  struct Job {
    border::RequestQueue* queue;
    vb_request* request;
    std::unique_ptr<Copies, void (*)(Copies*)> copies;
  };

  void run();

  const Hands hands_;
  std::mutex mutex_;
  std::condition_variable come_, done_;
  std::deque<Job> jobs_;
  const vb_request* running_ = nullptr;
};

}  // namespace verbena::adapter
