#pragma once

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "verbena/loop.h"
#include "verbena/outcome.h"
#include "verbena/task.h"

namespace verbena {

// Runs threads that have one loop each.  By default it runs one thread for each processor that the
// program may use.  Callbacks and coroutines of an object run in the thread of its loop.  Each
// thread runs one of them at a time, in parallel with the other threads.
//
//     auto pool = value_of(Pool::create());
//     pool->spawn([](Loop& loop) { return serve(loop); });  // in the next thread, round robin
//     pool->wait();
//
// To move an accepted endpoint to another thread, use move_to() (cm.h, ib_cm.h).
class Pool {
 public:
  using Work = std::move_only_function<Task<void>(Loop&)>;

  // Starts this number of threads.  0: one thread for each processor that the program may use.
  static Outcome<std::unique_ptr<Pool>> create(std::size_t threads = 0) {
    auto made = std::unique_ptr<Pool>(new Pool);
    if (threads == 0) threads = processors();
    for (std::size_t i = 0; i < threads; ++i) {
      auto runner = std::make_unique<Runner>();
      auto loop = Loop::create();
      if (!loop) return std::unexpected(loop.error());
      runner->loop = *std::move(loop);
      runner->wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      if (runner->wake < 0) return failure(errno, "eventfd");
      made->runners_.push_back(std::move(runner));
    }
    try {
      for (auto& runner : made->runners_) {
        runner->thread =
            std::thread([pool = made.get(), own_runner = runner.get()] { pool->run(*own_runner); });
      }
    } catch (const std::system_error& error) {
      return failure(error.code().value(), "a thread of the pool");
    }
    return made;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  // Destroys tasks that are not done, each in its thread.  Work that has not begun is destroyed in
  // the calling thread.
  ~Pool() {
    for (auto& runner : runners_) {
      runner->stop = true;
      ::eventfd_write(runner->wake, 1);
    }
    for (auto& runner : runners_) {
      if (runner->thread.joinable()) runner->thread.join();
    }
    for (auto& runner : runners_) runner->work.clear();
    for (auto& runner : runners_) ::close(runner->wake);
  }

  std::size_t size() const { return runners_.size(); }
  // Returns the loop of a thread, for example for move_to().
  Loop& loop(std::size_t number) const { return *runners_[number]->loop; }

  // Runs `work(loop)` in the next thread, or in the given one.  Any thread may call it.
  void spawn(Work work) { spawn_on(next_runner_.fetch_add(1) % runners_.size(), std::move(work)); }
  void spawn_on(std::size_t number, Work work) {
    Runner& runner = *runners_[number];
    {
      const std::scoped_lock lock(mutex_, runner.mutex);
      runner.work.push_back(std::move(work));
      ++tasks_;
    }
    ::eventfd_write(runner.wake, 1);
  }
  // Waits until all spawned work is done, or until the work or a callback throws an exception.
  // Throws the first of these exceptions again.  REQUIRES: the caller is not a thread of the pool.
  void wait() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [this] { return tasks_ == 0 || first_exception_; });
    if (first_exception_) std::rethrow_exception(std::exchange(first_exception_, nullptr));
  }

 private:
  struct Runner {
    std::unique_ptr<Loop> loop;
    int wake = -1;
    std::atomic<bool> stop = false;
    std::mutex mutex;
    std::deque<Work> work;
    std::thread thread;
  };

  Pool() = default;

  static std::size_t processors() {
    cpu_set_t set;
    CPU_ZERO(&set);
    const int count = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    return count > 0 ? static_cast<std::size_t>(count) : 1;
  }

  void run(Runner& runner) {
    while (!runner.stop) {
      try {
        start_new_work(runner);
        if (runner.stop || runner.loop->run_ready()) continue;
      } catch (...) {  // a callback has thrown, or there is no memory
        store_exception(std::current_exception());
        continue;
      }
      std::array<pollfd, 2> readable{{{.fd = runner.loop->fd(), .events = POLLIN, .revents = 0},
                                      {.fd = runner.wake, .events = POLLIN, .revents = 0}}};
      ::poll(readable.data(), readable.size(), -1);
    }
    runner.loop->drop_spawned();
  }
  void start_new_work(Runner& runner) {
    eventfd_t count = 0;
    ::eventfd_read(runner.wake, &count);
    for (;;) {
      Work work;
      {
        const std::lock_guard lock(runner.mutex);
        if (runner.work.empty()) return;
        work = std::move(runner.work.front());
        runner.work.pop_front();
      }
      runner.loop->spawn(run_counted(TaskCount(*this), *runner.loop, std::move(work)));
    }
  }
  // Counts one task until its coroutine is destroyed.
  class TaskCount {
   public:
    explicit TaskCount(Pool& pool) : pool_(&pool) {}
    TaskCount(TaskCount&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
    TaskCount& operator=(TaskCount&&) = delete;
    ~TaskCount() {
      if (pool_ == nullptr) return;
      const std::lock_guard lock(pool_->mutex_);
      if (--pool_->tasks_ == 0) pool_->all_done_.notify_all();
    }
    Pool& pool() const { return *pool_; }

   private:
    Pool* pool_;
  };
  // Runs `work`.  The coroutine destroys its own copy of the work before `count`, so the task does
  // not count as done while the work still exists.
  static Task<void> run_counted(TaskCount count, Loop& loop, Work work) {
    Work own = std::move(work);
    try {
      co_await own(loop);
    } catch (...) {
      count.pool().store_exception(std::current_exception());
    }
  }
  void store_exception(std::exception_ptr thrown) {
    const std::lock_guard lock(mutex_);
    if (!first_exception_) first_exception_ = std::move(thrown);
    all_done_.notify_all();
  }

  std::atomic<std::size_t> next_runner_ = 0;
  std::mutex mutex_;
  std::condition_variable all_done_;
  std::size_t tasks_ = 0;
  std::exception_ptr first_exception_{};
  // This is the last member, so it is destroyed first: its tasks use the members above.
  std::vector<std::unique_ptr<Runner>> runners_;
};

}  // namespace verbena
