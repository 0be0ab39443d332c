// Implements the functions of verbena/c_api_requests.h, by which a program submits commands as
// requests, over an adapter.

#include "adapter/adapter.h"
#include "adapter/worker.h"
#include "c_api/requests.h"

using namespace verbena::adapter;  // NOLINT(google-build-using-namespace): the C API of adapters
namespace c_api = verbena::c_api;

namespace {

// Runs body(queue, worker), or fails with kBadHandle if the queue does not exist.
template <class Body>
int on_queue(vb_handle queue, Body body) {
  return c_api::guarded([&] {
    c_api::RequestQueue* const found = c_api::RequestQueues::of_process().find(queue);
    if (found == nullptr) {
      return c_api::failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
    }
    const auto worker = Worker::get();
    return worker ? body(*found, **worker) : c_api::failed(worker.error());
  });
}

}  // namespace

extern "C" {

int vb_requests_create(vb_handle* queue, int* fd) {
  return c_api::guarded([&] {
    const auto handle = c_api::RequestQueues::of_process().create();
    if (!handle) return c_api::failed(handle.error());
    *queue = handle->value;
    *fd = c_api::RequestQueues::of_process().find(*queue)->fd();
    return 0;
  });
}

int vb_requests_destroy(vb_handle queue) {
  return c_api::result_of(c_api::RequestQueues::of_process().destroy(queue));
}

int vb_submit(vb_handle queue, struct vb_request* request) {
  request->next = nullptr;
  request->state = 0;
  const int status = on_queue(queue, [&](c_api::RequestQueue& request_queue, Worker& worker) {
    worker.submit(request_queue, *request);
    return EINPROGRESS;
  });
  if (status != EINPROGRESS) c_api::settle(*request, status, c_api::last_error());
  return status;
}

struct vb_request* vb_requests_next(vb_handle queue) {
  c_api::RequestQueue* const found = c_api::RequestQueues::of_process().find(queue);
  return found == nullptr ? nullptr : found->next();
}

int vb_requests_wait(vb_handle queue, struct vb_request* request) {
  return on_queue(queue, [&](c_api::RequestQueue& request_queue, Worker&) {
    const c_api::NoCancellation no_cancellation;
    request_queue.wait(*request);
    return 0;
  });
}

int vb_requests_cancel(vb_handle queue, struct vb_request* request) {
  return on_queue(queue, [&](c_api::RequestQueue& request_queue, Worker& worker) {
    // The thread must not be cancelled while it waits for the worker.
    const c_api::NoCancellation no_cancellation;
    return c_api::result_of(worker.cancel(request_queue, *request));
  });
}

}  // extern "C"
