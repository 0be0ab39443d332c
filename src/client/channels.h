#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "os/event_fd.h"
#include "process/process.h"

namespace verbena::client {

// A queue behind a descriptor that is readable exactly while something is in it.
//
// Invariant, under the lock: the descriptor is posted while there are entries, but for a reader
// that has taken the post and not yet the lock.  It posts again what it leaves there; and if a
// quicker one has left it nothing, it reads again.
template <class Entry>
class EventQueue {
 public:
  explicit EventQueue(os::EventFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.fd(); }

  void push(Entry entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
    if (entries_.size() == 1) post();
  }

  bool try_next(Entry& entry) {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return false;
    pop(entry);
    quieten();
    return true;
  }

  // Waits as read(2) on the descriptor does; 0 or its errno.  A cancellation point.
  int next(Entry& entry) {
    ::pthread_testcancel();
    std::optional<std::uint64_t> waited_from;  // having seen so many posts
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (waited_from) --sleepers_;
        if (!entries_.empty()) {
          pop(entry);
          const bool took_the_only = waited_from && *waited_from + 1 == posts_;
          if (!took_the_only || !fd_.never_waits()) quieten();
          if (waited_from && !entries_.empty()) post();
          return 0;
        }
        waited_from = posts_;
        ++sleepers_;
      }
      Sleep sleep{*this};
      if (const int error = fd_.take_blocking(); error != 0) return error;
      sleep.has_taken = true;
    }
  }

  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

  // Takes out the entries that `select` wants, and gives them.
  std::vector<Entry> withdraw(auto&& select) {
    std::vector<Entry> out;
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](Entry& entry) {
      if (!select(entry)) return false;
      out.push_back(std::move(entry));
      return true;
    });
    if (!out.empty()) quieten();
    return out;
  }

 private:
  // A sleeper that goes without having taken anything, by a signal or cancelled; some C libraries
  // cancel when the post is taken already.
  struct Sleep {
    EventQueue& queue;
    bool has_taken = false;
    ~Sleep() {
      if (has_taken) return;
      const std::lock_guard lock(queue.mutex_);
      --queue.sleepers_;
      queue.quieten();
      if (!queue.entries_.empty()) queue.post();
    }
  };

  // All of these under the lock.
  void pop(Entry& entry) {
    entry = std::move(entries_.front());
    entries_.pop_front();
  }
  void post() {
    ++posts_;
    fd_.post();
  }
  // If nothing is there any more.  Where taking may wait, who sleeps is left the post, and finds
  // nothing: two that took it would wait for each other.
  void quieten() {
    if (entries_.empty() && (sleepers_ == 0 || fd_.never_waits())) (void)fd_.try_take();
  }

  os::EventFd fd_;
  std::uint64_t posts_ = 0;
  std::uint32_t sleepers_ = 0;
  std::mutex mutex_;
  std::deque<Entry> entries_;
};

using CompletionChannel = EventQueue<std::uint64_t>;  // cookies of CQs
struct CmChannel : EventQueue<process::CmNotice> {
  using EventQueue::EventQueue;
  bool hides_lost_requests = false;  // under the lock of the Channels
};
using AsyncQueue = EventQueue<process::AsyncNotice>;

// A channel that may be destroyed while a thread is on its way to wait there: programs that end do
// so (rping).  Such a thread finds nothing, for ever, and the descriptor is open as long as it
// waits.
template <class Queue>
using Shared = std::shared_ptr<Queue>;
using CompletionChannelHandle = Handle<Shared<CompletionChannel>>;
using CmChannelHandle = Handle<Shared<CmChannel>>;

// The channels of a program, and which CQs and ids report where.  Any thread.
class Channels {
 public:
  static constexpr std::uint32_t kChannelsMax = 65536;  // of each kind
  static constexpr std::size_t kUnreadEventsMax =
      65'536;  // of a channel; but a user's, all are told

  static Result<std::unique_ptr<AsyncQueue>> make_async();

  Channels();

  // How often there was no place for one more channel.
  std::uint64_t limits_met() const { return limits_met_.load(std::memory_order_relaxed); }

  // Completion channels.
  Result<CompletionChannelHandle> create_completion();
  Result<void> destroy_completion(CompletionChannelHandle channel);
  Shared<CompletionChannel> completion(CompletionChannelHandle channel);

  // CQs: the engine's cookie for one that reports to `channel` (none: null handle) as `cookie`.
  Result<std::uint64_t> add_cq(CompletionChannelHandle channel, std::uint64_t cookie);
  void bind_cq(std::uint64_t engine_cookie, hca::CqHandle cq);
  // Nothing more of it will come out of its channel.
  void remove_cq(hca::CqHandle cq);
  void remove_unbound_cq(std::uint64_t engine_cookie);
  std::uint64_t cookie_of_cq(std::uint64_t engine_cookie);

  // Event channels of the RDMA CM.
  Result<CmChannelHandle> create_cm();
  Result<void> destroy_cm(CmChannelHandle channel);
  Shared<CmChannel> cm(CmChannelHandle channel);
  // What happens to an id that a request brought is not told until the program accepts it.
  Result<void> hide_lost_requests(CmChannelHandle channel);
  Result<void> add_id(process::ConnectionHandle id, CmChannelHandle channel);
  // The notices of it that nobody has taken.
  std::vector<process::CmNotice> remove_id(process::ConnectionHandle id);
  // No event of this join will come any more.
  void remove_group(process::ConnectionHandle id, std::uint64_t group);
  Result<void> migrate_id(process::ConnectionHandle id, CmChannelHandle channel);
  // What the program tells itself, through the id's channel.  kNoResources: a user's event, and
  // kUnreadEventsMax.
  Result<void> write_event(process::CmNotice&& notice);

  // No event of this QP or SRQ will come out of the asynchronous queue any more.
  void forget_qp(std::uint64_t cookie);
  void forget_srq(std::uint64_t cookie);
  AsyncQueue* async() { return async_.get(); }
  Result<int> async_fd();

  // True: whoever reads it will come back, for it has more to read.
  bool dispatch(const process::Notice& notice);

 private:
  struct Cq {
    CompletionChannelHandle channel{};
    std::uint64_t cookie = 0;
    hca::CqHandle handle{};
  };

  enum class Kind : std::uint8_t { kNone, kCq, kQp, kSrq };
  static Kind object_of(std::uint32_t event_type);
  void withdraw_async(std::uint64_t cookie, Kind kind);

  template <class Queue>
  Result<Handle<Shared<Queue>>> create_in(Slots<Shared<Queue>>& slots);

  std::atomic<std::uint64_t> limits_met_{};
  std::mutex mutex_;  // of the maps; the queues have their own
  Slots<Shared<CompletionChannel>> completion_;
  Slots<Shared<CmChannel>> cm_;
  std::map<std::uint64_t, Cq> cqs_;  // by the engine's cookie
  std::uint64_t next_cq_ = 1;
  std::map<process::ConnectionHandle, CmChannelHandle> ids_;
  std::unique_ptr<AsyncQueue> async_;
};

}  // namespace verbena::client
