// Implements the C API: commands as requests.

#include <pthread.h>

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "c_api/commands.h"
#include "c_api/requests.h"
#include "c_api/single.h"
#include "client/c_api_support.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

// Describes one VB_OPEN command.  The command may start the agent and then waits for the agent, so
// each such command has a thread of its own.  Few threads are needed, because most programs open
// the device once.
struct Opening {
  vb_open_args args{};  // a copy of the program's arguments
  std::mutex mutex;
  vb_request* request = nullptr;  // nullptr: the command was cancelled
};

// Runs the VB_OPEN commands.
class Openings {
 public:
  int start(RequestQueue& queue, vb_request& request) {
    auto opening = std::make_shared<Opening>();
    opening->args = c_api::args_of<vb_open_args>(request);
    opening->request = &request;
    {
      const std::lock_guard lock(mutex_);
      pending_[&request] = opening;
    }
    queue.begin(request);
    const auto undo = [&] {
      queue.end(request);
      forget(request);
    };
    try {
      auto thread = os::start_thread("verbena-open", [&queue, opening] { open(queue, *opening); });
      if (!thread) {
        undo();
        return failed(thread.error());
      }
      thread->detach();
    } catch (const std::bad_alloc&) {
      undo();
      throw;
    }
    return EINPROGRESS;
  }
  // Ends an opening.  After this call, the thread of the opening does not touch the request.
  void end(vb_request& request) {
    if (const auto opening = forget(request)) {
      const std::lock_guard lock(opening->mutex);
      opening->request = nullptr;
    }
  }

 private:
  static void open(RequestQueue& queue, Opening& opening);

  std::shared_ptr<Opening> forget(vb_request& request) {
    const std::lock_guard lock(mutex_);
    auto node = pending_.extract(&request);
    return node ? std::move(node.mapped()) : nullptr;
  }

  std::mutex mutex_;
  std::map<vb_request*, std::shared_ptr<Opening>> pending_;
};

constinit c_api::Single<Openings> all_openings;

Openings& openings() { return all_openings.get(); }

__attribute__((constructor)) void register_fork_handler_of_openings() {
  pthread_atfork(nullptr, nullptr, [] { all_openings.forget(); });
}

void Openings::open(RequestQueue& queue, Opening& opening) {
  vb_open_args args = opening.args;
  const int error = c_api::open(args);
  const std::string text = error == 0 ? "" : vb_last_error();
  const std::lock_guard lock(opening.mutex);
  if (opening.request == nullptr) return;
  c_api::args_of<vb_open_args>(*opening.request) = args;
  queue.finish(*opening.request, error, text);
}

// Removes the record of a completed request that the program has taken.
void forget_request(vb_request& request) {
  if (request.command == VB_OPEN) return openings().end(request);
  if (Client* client = client_if_any()) client->forget(request);
}

int cancel(RequestQueue& queue, vb_request& request) {
  bool was_done = false;
  int error = EINVAL;
  if (request.command == VB_OPEN) {
    openings().end(request);
    error = queue.cancel(request, &was_done) ? 0 : EINVAL;
  } else if (Client* client = client_if_any()) {
    error = client->cancel(queue, request, &was_done);
  }
  if (error != 0) return failed({Errc::kBadHandle, 0, "the request is not pending"});
  if (was_done) c_api::undo(request);
  return 0;
}

int submit(RequestQueue& queue, vb_request& request) {
  const Submission submission{queue, request};
  switch (request.command) {
    case VB_OPEN: return openings().start(queue, request);
    case VB_QP_CREATE: {
      auto& a = c_api::args_of<vb_qp_args>(request);
      return qp_create(&submission, &a.init, &a.qp, &a.qp_num);
    }
    case VB_QP_ATTACH: return qp_attach(&submission, c_api::args_of<vb_group_args>(request));
    default: break;
  }
  if (request.command >= VB_CM_BIND && request.command <= VB_CM_ANSWER_PATH) {
    return cm_command(&submission, request.command, c_api::args_of<vb_cm_args>(request));
  }
  return c_api::call(request);
}

}  // namespace
}  // namespace verbena::client

using verbena::c_api::RequestQueues;
using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API

extern "C" {

int vb_requests_create(vb_handle* queue, int* fd) {
  return guarded([&] {
    const auto handle = RequestQueues::of_process().create();
    if (!handle) return failed(handle.error());
    *queue = handle->value;
    *fd = RequestQueues::of_process().find(*queue)->fd();
    return 0;
  });
}

int vb_requests_destroy(vb_handle queue) {
  return result_of(RequestQueues::of_process().destroy(queue));
}

int vb_submit(vb_handle queue, struct vb_request* request) {
  request->next = nullptr;
  request->state = 0;
  const int status = guarded([&] {
    RequestQueue* const found = RequestQueues::of_process().find(queue);
    if (found == nullptr) return failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
    return submit(*found, *request);
  });
  if (status != EINPROGRESS) settle(*request, status, status == 0 ? "" : vb_last_error());
  return status;
}

struct vb_request* vb_requests_next(vb_handle queue) {
  RequestQueue* const found = RequestQueues::of_process().find(queue);
  vb_request* const request = found == nullptr ? nullptr : found->next();
  if (request != nullptr) forget_request(*request);
  return request;
}

int vb_requests_wait(vb_handle queue, struct vb_request* request) {
  RequestQueue* const found = RequestQueues::of_process().find(queue);
  if (found == nullptr) return failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
  const NoCancellation no_cancellation;
  found->wait(*request);
  forget_request(*request);
  return 0;
}

int vb_requests_cancel(vb_handle queue, struct vb_request* request) {
  RequestQueue* const found = RequestQueues::of_process().find(queue);
  if (found == nullptr) return failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
  return cancel(*found, *request);
}

}  // extern "C"
