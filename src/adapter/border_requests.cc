// Implements the C API over an adapter: commands as requests.

#include "adapter/adapter.h"
#include "adapter/worker.h"
#include "border/requests.h"

using namespace verbena::adapter;  // NOLINT(google-build-using-namespace): the C API of adapters
namespace border = verbena::border;

namespace {

border::RequestQueues& queues() {
  static auto* const all = new border::RequestQueues;  // never freed: threads may use it at exit
  return *all;
}

// Runs body(queue, worker) for a queue that exists.
template <class Body>
int on_queue(vb_handle queue, Body body) {
  return border::guarded([&] {
    border::RequestQueue* const found = queues().find(queue);
    if (found == nullptr) {
      return border::failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
    }
    const auto worker = Worker::get();
    return worker ? body(*found, **worker) : border::failed(worker.error());
  });
}

}  // namespace

extern "C" {

int vb_requests_create(vb_handle* queue, int* fd) {
  return border::guarded([&] {
    const auto made = queues().create();
    if (!made) return border::failed(made.error());
    *queue = made->value;
    *fd = queues().find(*queue)->fd();
    return 0;
  });
}

int vb_requests_destroy(vb_handle queue) { return border::result_of(queues().destroy(queue)); }

int vb_submit(vb_handle queue, struct vb_request* request) {
  request->next = nullptr;
  request->state = 0;
  const int status = on_queue(queue, [&](border::RequestQueue& its, Worker& worker) {
    worker.submit(its, *request);
    return EINPROGRESS;
  });
  if (status != EINPROGRESS) border::settle(*request, status, border::last_error());
  return status;
}

struct vb_request* vb_requests_next(vb_handle queue) {
  border::RequestQueue* const found = queues().find(queue);
  return found == nullptr ? nullptr : found->next();
}

int vb_requests_wait(vb_handle queue, struct vb_request* request) {
  return on_queue(queue, [&](border::RequestQueue& its, Worker&) {
    const border::NoCancellation whole_call;
    its.wait(*request);
    return 0;
  });
}

int vb_requests_cancel(vb_handle queue, struct vb_request* request) {
  return on_queue(queue, [&](border::RequestQueue& its, Worker& worker) {
    const border::NoCancellation whole_call;
    return border::result_of(worker.cancel(its, *request));
  });
}

}  // extern "C"
