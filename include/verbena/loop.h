#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "verbena/c_api_requests.h"
#include "verbena/outcome.h"
#include "verbena/task.h"

namespace verbena {

class Loop;

namespace detail {

// Owns a handle of the C API.
//
// The destructor destroys the object.  If other objects still use the object, it remains until the
// program ends; the destroy() functions of the API report this case as an error.
template <int (*Destroy)(vb_handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(vb_handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, 0);
    }
    return *this;
  }
  ~Owned() { reset(); }
  vb_handle get() const { return handle_; }

 private:
  void reset() {
    if (handle_ != 0) Destroy(handle_);  // no effect after destroy(): the handle is stale
  }
  vb_handle handle_ = 0;
};

// Owns the sink of an API object, which receives the object's events.  Other objects that use the
// API object share its sink, so that the sink lives as long as they do.  Events that come after the
// owner is destroyed are dropped.
template <class S>
class SinkOwner {
 public:
  SinkOwner() = default;
  explicit SinkOwner(std::shared_ptr<S> sink) : sink_(std::move(sink)) {}
  SinkOwner(SinkOwner&& other) noexcept = default;
  SinkOwner& operator=(SinkOwner&& other) noexcept {
    if (this != &other) {
      end_wait();
      sink_ = std::move(other.sink_);
    }
    return *this;
  }
  ~SinkOwner() { end_wait(); }
  S* operator->() const { return sink_.get(); }
  S& operator*() const { return *sink_; }
  std::shared_ptr<const void> share() const { return sink_; }

 private:
  void end_wait() const {
    if (sink_ != nullptr) sink_->end_wait();
  }
  std::shared_ptr<S> sink_{};
};

// Receives events of the C API.  The address of the sink is the cookie of its events.
class Sink {
 public:
  virtual void on_completions() {}
  virtual void on_async(std::uint32_t /*ibv_event_type*/) {}
  virtual void on_cm_event(const vb_cm_event& /*event*/) {}

 protected:
  ~Sink() = default;
};

inline Sink* sink_of(std::uint64_t cookie) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): cookies of the C API are numbers
  return reinterpret_cast<Sink*>(static_cast<std::uintptr_t>(cookie));
}
inline std::uint64_t cookie_of(Sink& sink) { return reinterpret_cast<std::uintptr_t>(&sink); }

// Passes asynchronous events to the loops of their objects.  All loops of a process share one
// context, and all of them watch its descriptor.  The loop that takes an event passes it to the
// loop of its object, which may run in another thread.
//
// Threads: any thread may call these functions.  After remove() the sink gets no more events.
class AsyncEvents {
 public:
  struct Event {
    Sink* sink = nullptr;
    std::uint32_t type = 0;
  };

  // Returns the only instance of the process, even if several of its libraries contain the API.
  [[gnu::visibility("default")]] static AsyncEvents& get() {
    static auto* const all = make();  // never freed: API objects may outlive static objects
    return *all;
  }

  // Opens the context unless it is open already, and sets `fd` to its descriptor.  Returns 0 or an
  // errno value.
  int open(int& fd) {
    const std::lock_guard lock(mutex_);
    const int error =
        context_ != 0 ? 0 : vb_context_create(VB_ALL_DEVICES, &context_, &context_fd_);
    fd = context_fd_;
    return error;
  }
  // Returns the context with which objects are created, so that their events come here.
  vb_handle context() {
    const std::lock_guard lock(mutex_);
    return context_;
  }
  // Adds a loop.  `fd` is readable while events wait for it.
  void add_loop(const Loop& loop, int fd) {
    const std::lock_guard lock(mutex_);
    loops_[&loop].fd = fd;
  }
  void remove_loop(const Loop& loop) {
    const std::lock_guard lock(mutex_);
    loops_.erase(&loop);
  }
  void add(Sink& sink, const Loop& loop) {
    const std::lock_guard lock(mutex_);
    sinks_[cookie_of(sink)] = &loop;
  }
  void remove(Sink& sink) {
    const std::lock_guard lock(mutex_);
    const auto at = sinks_.find(cookie_of(sink));
    if (at == sinks_.end()) return;  // the object was created before a fork
    if (const auto loop = loops_.find(at->second); loop != loops_.end()) {
      const auto removed = std::erase_if(loop->second.events,
                                         [&](const Event& event) { return event.sink == &sink; });
      if (removed > 0) clear_fd_if_empty(loop->second);
    }
    sinks_.erase(at);
  }
  // Takes an event from the library and passes it to the loop of its object.  Returns false if the
  // library has no event.
  bool pass_on_next() {
    const std::lock_guard lock(mutex_);
    vb_async_event event{};
    if (vb_async_next(context_, &event) != 0) return false;
    const auto sink = sinks_.find(event.cookie);
    if (sink == sinks_.end()) return true;  // an event of a port, or of a destroyed object
    const auto loop = loops_.find(sink->second);
    if (loop == loops_.end()) return true;
    loop->second.events.push_back({sink_of(event.cookie), event.type});
    ::eventfd_write(loop->second.fd, 1);
    return true;
  }
  std::optional<Event> next(const Loop& loop) {
    const std::lock_guard lock(mutex_);
    const auto at = loops_.find(&loop);
    if (at == loops_.end() || at->second.events.empty()) return std::nullopt;
    PerLoop& per_loop = at->second;
    const Event first = per_loop.events.front();
    per_loop.events.pop_front();
    clear_fd_if_empty(per_loop);
    return first;
  }

 private:
  struct PerLoop {
    int fd = -1;
    std::deque<Event> events{};
  };
  static AsyncEvents* make() {
    auto* const all = new AsyncEvents;
    // A forked child starts without loops and objects.  It cannot use the parent's objects, because
    // it shares their descriptors with the parent.
    ::pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                     [] {
                       get().sinks_.clear();
                       get().loops_.clear();
                       get().context_ = 0;
                       get().mutex_.unlock();
                     });
    return all;
  }
  // Makes the loop's descriptor unreadable if no event waits for the loop.
  static void clear_fd_if_empty(const PerLoop& per_loop) {
    eventfd_t count = 0;
    if (per_loop.events.empty()) ::eventfd_read(per_loop.fd, &count);
  }

  std::mutex mutex_;
  vb_handle context_ = 0;
  int context_fd_ = -1;
  std::map<std::uint64_t, const Loop*> sinks_;  // by cookie
  std::map<const Loop*, PerLoop> loops_;
};

// Receives asynchronous events in its loop.
class AsyncSink : public Sink {
 public:
  explicit AsyncSink(const Loop& loop) { AsyncEvents::get().add(*this, loop); }
  AsyncSink(const AsyncSink&) = delete;
  AsyncSink& operator=(const AsyncSink&) = delete;

 protected:
  ~AsyncSink() { AsyncEvents::get().remove(*this); }
};

// Holds events that were not taken yet, and the one coroutine that waits for more.  Do not await it
// in the condition of a loop: GCC 12 miscompiles that.
template <class Event>
class Mailbox {
 public:
  class Next {
   public:
    explicit Next(Mailbox& box) : box_(&box) {}
    Next(const Next&) = delete;
    Next& operator=(const Next&) = delete;
    ~Next() {
      if (box_ != nullptr && box_->waiter_ == this) box_->waiter_ = nullptr;
    }
    bool await_ready() const { return !box_->events_.empty(); }
    void await_suspend(std::coroutine_handle<> frame) {
      frame_ = frame;
      box_->waiter_ = this;
    }
    Event await_resume() {
      Event first = std::move(box_->events_.front());
      box_->events_.pop_front();
      return first;
    }

   private:
    friend class Mailbox;
    Mailbox* box_;  // null: the mailbox is destroyed, and the coroutine is never resumed
    std::coroutine_handle<> frame_{};
  };

  Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  ~Mailbox() { end_wait(); }
  // Ends the wait of the coroutine, which is never resumed.
  void end_wait() {
    if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->box_ = nullptr;
  }
  void push(Event event) {
    events_.push_back(std::move(event));
    if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->frame_.resume();
  }
  void for_each(auto&& f) {
    for (Event& event : events_) f(event);
  }
  bool holds(const Event& event) const {
    return std::find(events_.begin(), events_.end(), event) != events_.end();
  }

 private:
  std::deque<Event> events_;
  Next* waiter_ = nullptr;
};

// Receives the asynchronous events of one API object.  It stores at most one event of each kind.
template <class Kind, int (*Destroy)(vb_handle)>
class EventSink final : public AsyncSink {
 public:
  using AsyncSink::AsyncSink;
  void on_async(std::uint32_t type) override {
    const auto kind = static_cast<Kind>(type);
    if (!events.holds(kind)) events.push(kind);
  }
  void end_wait() { events.end_wait(); }
  Mailbox<Kind> events{};
  std::array<std::shared_ptr<const void>, 3> keep_alive{};
  Owned<Destroy> handle{};
};

// Represents a command that was submitted.  It must not move in memory.
struct Operation : vb_request {
  Operation() : vb_request{} { user = this; }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;
  // Delivers the outcome: calls the callback or resumes the coroutine.  Either may destroy this
  // object.
  virtual void complete() = 0;
};

}  // namespace detail

// Runs callbacks and coroutines when commands complete: only in run(), run_until() and run_ready(),
// and never inside the call that started a command.
//
// A program runs the loop, polls it, or adds fd() to its own event loop and calls run_ready() when
// fd() is readable.  Only the thread that runs the loop may use its objects, except for posting and
// polling, which any thread may do.  Different loops are independent.  REQUIRES: the loop outlives
// all objects that were created with it.
class Loop {
 public:
  static Outcome<std::unique_ptr<Loop>> create() {
    auto made = std::unique_ptr<Loop>(new Loop);
    made->poller_ = ::epoll_create1(EPOLL_CLOEXEC);
    int fd = -1;
    if (made->poller_ < 0) return failure(errno, "epoll_create1");
    if (const int error = vb_requests_create(&made->requests_, &fd); error != 0) {
      return failure(error, vb_last_error());
    }
    made->finished_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made->finished_fd_ < 0) return failure(errno, "eventfd");
    if (const int error = made->watch(made->finished_fd_, kFinished); error != 0) {
      return failure(error, "epoll_ctl");
    }
    made->async_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made->async_fd_ < 0) return failure(errno, "eventfd");
    if (const int error = made->watch(made->async_fd_, kAsyncEvents); error != 0) {
      return failure(error, "epoll_ctl");
    }
    detail::AsyncEvents::get().add_loop(*made, made->async_fd_);
    if (const int error = made->watch(fd, kRequests); error != 0)
      return failure(error, "epoll_ctl");
    return made;
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() {
    spawned_.clear();
    detail::AsyncEvents::get().remove_loop(*this);
    if (async_fd_ >= 0) ::close(async_fd_);
    destroy_channels();
    if (requests_ != 0) vb_requests_destroy(requests_);
    if (finished_fd_ >= 0) ::close(finished_fd_);
    if (poller_ >= 0) ::close(poller_);
  }

  // Returns a descriptor that is readable while run_ready() has something to do.  A program may
  // watch it edge-triggered: there is an edge for each event and each completed command.
  int fd() const { return poller_; }

  // Handles some of the completed commands and events, without waiting.  Call it again while it
  // returns true: false means that nothing was ready.  Throws the exceptions of callbacks and of
  // spawned tasks.
  bool run_ready() {
    bool any = false;
    std::array<epoll_event, 8> ready{};
    const int count = ::epoll_wait(poller_, ready.data(), static_cast<int>(ready.size()), 0);
    for (int i = 0; i < count; ++i) any |= dispatch(ready[static_cast<std::size_t>(i)].data.u64);
    for (auto task = spawned_.begin(); task != spawned_.end();) {
      if (!task->done()) {
        ++task;
        continue;
      }
      Task<void> done_task = std::move(*task);
      task = spawned_.erase(task);
      done_task.take();
    }
    return any;
  }

  // Runs the loop until the task is done, and returns its result.
  template <class T>
  T run(Task<T> task) {
    task.start();
    run_until([&] { return task.done(); });
    return task.take();
  }
  void run_until(auto&& done) {
    while (!done()) {
      if (run_ready() || done()) continue;
      pollfd readable{.fd = poller_, .events = POLLIN, .revents = 0};
      ::poll(&readable, 1, -1);
    }
  }
  // Starts a task, which the loop owns until it is done.  Its exception is thrown here, or by
  // run_ready() when it ends.
  void spawn(Task<void> task) {
    task.start();
    if (task.done()) return task.take();
    spawned_.push_back(std::move(task));
  }

  // Destroys all spawned tasks that are not done.
  void drop_spawned() { spawned_.clear(); }

  // ---- for the objects of the API ----
  vb_handle requests() const { return requests_; }
  vb_handle completions() const { return completions_; }
  vb_handle connections() const { return connections_; }
  // Queues a command that completed inside the call that started it.  run_ready() calls its
  // complete().
  void finish_later(detail::Operation& operation) {
    ::eventfd_write(finished_fd_, 1);
    operation.next = nullptr;
    *finished_last_ = &operation;
    finished_last_ = &operation.next;
  }
  void remove_finished(detail::Operation& operation) {
    for (vb_request** at = &finished_; *at != nullptr; at = &(*at)->next) {
      if (*at != &operation) continue;
      *at = operation.next;
      if (finished_last_ == &operation.next) finished_last_ = at;
      if (finished_ == nullptr) clear_finished_fd();
      return;
    }
  }
  // Creates the channels, after the device was opened.  After an error, the next call tries again.
  Outcome<void> attach() {
    if (is_attached_) return {};
    Outcome<void> attached = create_channels();
    is_attached_ = attached.has_value();
    if (!is_attached_) destroy_channels();
    return attached;
  }

 private:
  enum Token : std::uint64_t {
    kFinished,
    kRequests,
    kCompletions,
    kConnections,
    kAsyncContext,
    kAsyncEvents
  };

  Loop() = default;

  int watch(int fd, Token token) const {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = token}};
    return ::epoll_ctl(poller_, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : errno;
  }

  Outcome<void> create_channels() {
    int fd = -1;
    if (const int error = vb_channel_create(&completions_, &fd); error != 0) {
      return failure(error, vb_last_error());
    }
    if (const int error = watch(fd, kCompletions); error != 0) return failure(error, "epoll_ctl");
    if (const int error = vb_cm_channel_create(&connections_, &fd); error != 0) {
      return failure(error, vb_last_error());
    }
    if (const int error = watch(fd, kConnections); error != 0) return failure(error, "epoll_ctl");
    if (const int error = detail::AsyncEvents::get().open(fd); error != 0) {
      return failure(error, vb_last_error());
    }
    if (const int error = watch(fd, kAsyncContext); error != 0) return failure(error, "epoll_ctl");
    return {};
  }
  void destroy_channels() {
    if (completions_ != 0) vb_channel_destroy(std::exchange(completions_, 0));
    if (connections_ != 0) vb_cm_channel_destroy(std::exchange(connections_, 0));
  }

  bool run_finished() {
    if (finished_ == nullptr) return false;
    auto* const operation = static_cast<detail::Operation*>(finished_);
    finished_ = operation->next;
    if (finished_ == nullptr) {
      finished_last_ = &finished_;
      clear_finished_fd();
    }
    operation->complete();
    return true;
  }
  void clear_finished_fd() const {
    eventfd_t count = 0;
    ::eventfd_read(finished_fd_, &count);
  }

  bool dispatch(std::uint64_t token) {
    switch (token) {
      case kFinished: return run_finished();
      case kRequests:
        if (vb_request* const request = vb_requests_next(requests_)) {
          static_cast<detail::Operation*>(request->user)->complete();
          return true;
        }
        return false;
      case kCompletions: {
        std::uint64_t cookie = 0;
        if (vb_channel_next(completions_, &cookie) != 0) return false;
        detail::sink_of(cookie)->on_completions();
        return true;
      }
      case kConnections: {
        vb_cm_event event{};
        if (vb_cm_next_event(connections_, &event) != 0) return false;
        detail::sink_of(event.cookie)->on_cm_event(event);
        return true;
      }
      case kAsyncContext: return detail::AsyncEvents::get().pass_on_next();
      case kAsyncEvents: {
        const auto event = detail::AsyncEvents::get().next(*this);
        if (!event) return false;
        event->sink->on_async(event->type);
        return true;
      }
      default: return false;
    }
  }

  int poller_ = -1;
  int finished_fd_ = -1;  // readable while finished_ is not empty
  int async_fd_ = -1;     // readable while asynchronous events wait for objects of this loop
  vb_handle requests_ = 0, completions_ = 0, connections_ = 0;
  bool is_attached_ = false;
  vb_request* finished_ = nullptr;
  vb_request** finished_last_ = &finished_;
  std::list<Task<void>> spawned_{};
};

}  // namespace verbena
