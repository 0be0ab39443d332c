#include "c_api/requests.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "c_api/single.h"

namespace verbena::c_api {
namespace {

constinit Single<RequestQueues> all_queues;

__attribute__((constructor)) void register_fork_handler_of_queues() {
  pthread_atfork(nullptr, nullptr, [] { all_queues.forget(); });
}

}  // namespace

RequestQueues& RequestQueues::of_process() { return all_queues.get(); }

void settle(vb_request& request, int status, std::string_view text) {
  request.status = status;
  const std::size_t bytes = std::min(text.size(), sizeof request.text - 1);
  std::memcpy(request.text, text.data(), bytes);
  request.text[bytes] = '\0';
}

Result<std::unique_ptr<RequestQueue>> RequestQueue::create() {
  return std::make_unique<RequestQueue>(VB_TRY(os::EventFd::create()));
}

void RequestQueue::begin(vb_request& request) {
  const std::lock_guard lock(mutex_);
  request.state = kPending;
  request.next = nullptr;
  ++request_count_;
}

void RequestQueue::end(vb_request& request) {
  const std::lock_guard lock(mutex_);
  request.state = kNone;
  --request_count_;
}

void RequestQueue::finish(vb_request& request, int status, std::string_view text) {
  const std::lock_guard lock(mutex_);
  settle(request, status, text);
  request.state = kDone;
  fd_.post();  // an edge for each request, because the program may use EPOLLET
  *last_ = &request;
  last_ = &request.next;
  done_.notify_all();
}

void RequestQueue::remove_completed(vb_request& request) {
  vb_request** link = &first_;
  while (*link != &request) link = &(*link)->next;
  *link = request.next;
  if (last_ == &request.next) last_ = link;
  request.next = nullptr;
  request.state = kNone;
  --request_count_;
  if (first_ == nullptr) (void)fd_.try_take();
}

vb_request* RequestQueue::next() {
  const std::lock_guard lock(mutex_);
  if (first_ == nullptr) return nullptr;
  vb_request& request = *first_;
  remove_completed(request);
  return &request;
}

void RequestQueue::wait(vb_request& request) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return request.state != kPending; });
  if (request.state == kDone) remove_completed(request);
}

bool RequestQueue::cancel(vb_request& request, bool* was_done) {
  const std::lock_guard lock(mutex_);
  *was_done = request.state == kDone;
  if (request.state == kNone) return false;
  if (*was_done) {
    remove_completed(request);
  } else {
    request.state = kNone;
    --request_count_;
  }
  return true;
}

bool RequestQueue::busy() const {
  const std::lock_guard lock(mutex_);
  return request_count_ > 0;
}

Result<Handle<RequestQueue>> RequestQueues::create() {
  auto queue = VB_TRY(RequestQueue::create());
  const std::lock_guard lock(mutex_);
  return all_.insert(std::move(queue));
}

Result<void> RequestQueues::destroy(vb_handle queue) {
  const std::lock_guard lock(mutex_);
  const RequestQueue* const found = find(queue);
  if (found == nullptr) return fail(Errc::kBadHandle, "no such request queue");
  if (found->busy()) return fail(Errc::kBusy, "requests are pending");
  all_.remove({queue});
  return {};
}

}  // namespace verbena::c_api
