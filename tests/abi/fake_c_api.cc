#include "fake_c_api.h"

#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "fake_objects.h"
#include "verbena_build.h"

namespace fake {

State& state() {
  static State& all = *[] {
    auto* initial = new State;
    initial->connect_answer.type = RDMA_CM_EVENT_ESTABLISHED;
    return initial;
  }();
  return all;
}

Queue::Queue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)) {}
Queue::~Queue() { close(fd_); }

void Queue::push(const Event& event) {
  std::scoped_lock lock(mutex_);
  events_.push_back(event);
  eventfd_write(fd_, 1);
}

int Queue::next_event(Event& event) {
  for (;;) {
    if ((fcntl(fd_, F_GETFL) & O_NONBLOCK) == 0) {
      pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&wait, 1, -1) < 0) return errno;
    }
    std::scoped_lock lock(mutex_);
    if (!events_.empty()) {
      event = events_.front();
      events_.pop_front();
      remove_readable(1);
      return 0;
    }
    if ((fcntl(fd_, F_GETFL) & O_NONBLOCK) != 0) return EAGAIN;
  }
}

void Queue::remove_readable(std::size_t count) {
  for (; count > 0; --count) {
    eventfd_t one = 0;
    eventfd_read(fd_, &one);
  }
}

int injected_error(const char* function) {
  std::scoped_lock lock(state().mutex);
  const auto it = state().injected_errors.find(function);
  return it != state().injected_errors.end() ? it->second : 0;
}

int make_handle(vb_handle* handle) {
  *handle = ++state().last_handle;
  return 0;
}

int make_channel(vb_handle* channel, int* fd) {
  std::scoped_lock lock(state().mutex);
  make_handle(channel);
  Queue* queue = state().channels[*channel] = new Queue;
  *fd = queue->fd();
  return 0;
}

int destroy_channel(vb_handle channel) {
  std::scoped_lock lock(state().mutex);
  Queue** queue = find(state().channels, channel);
  if (queue == nullptr) return EINVAL;
  delete *queue;
  state().channels.erase(channel);
  return 0;
}

Queue* channel_of(vb_handle handle) {
  std::scoped_lock lock(state().mutex);
  Queue** queue = find(state().channels, handle);
  return queue != nullptr ? *queue : nullptr;
}

bool has_port(std::uint32_t device, std::uint32_t port) {
  if (device == 0) return port == 1;
  return state().has_two_devices && device == 1 && (port == 1 || port == 2);
}

}  // namespace fake

extern "C" {

VB_API const char* vb_last_error() { return "the test makes this call fail"; }
VB_API const char* vb_build_id() {
  const std::string& id = fake::state().build_id;
  return id.empty() ? VB_BUILD_ID : id.c_str();
}

}  // extern "C"
