#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "os/event_fd.h"
#include "process/process.h"

namespace verbena::client {

// An event of a completion queue, and one of a context.  `object` is the number that the Channels
// have given to the CQ, QP or SRQ; 0: an event of the port or the device.
struct CqEvent {
  std::uint64_t object = 0;
  std::uint64_t cookie = 0;
};
struct AsyncEvent {
  std::uint32_t type = 0;
  std::uint64_t object = 0;
  std::uint64_t cookie = 0;
};

// The object that an entry is withdrawn with.
inline std::uint64_t owner_of(const CqEvent& event) { return event.object; }
inline std::uint64_t owner_of(const AsyncEvent& event) { return event.object; }
inline std::uint64_t owner_of(const process::CmNotice& notice) { return notice.id.value; }

// A queue behind a descriptor that is readable exactly while something is in it.  Withdrawing the
// entries of one owner costs the same however many others wait.
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
    List one;
    one.push_back(std::move(entry));
    by_owner_.emplace(owner_of(one.front()), one.begin());
    entries_.splice(entries_.end(), one);
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

  // Takes out the entries of `owner` that `select` wants, and gives them in their order.
  std::vector<Entry> withdraw(std::uint64_t owner, auto&& select) {
    std::vector<Entry> out;
    const std::lock_guard lock(mutex_);
    const auto [first, last] = by_owner_.equal_range(owner);
    for (auto its = first; its != last;) {
      const auto at = its++;
      if (!select(std::as_const(*at->second))) continue;
      out.push_back(std::move(*at->second));
      entries_.erase(at->second);
      by_owner_.erase(at);
    }
    if (!out.empty()) quieten();
    return out;
  }
  std::vector<Entry> withdraw(std::uint64_t owner) {
    return withdraw(owner, [](const Entry&) { return true; });
  }

  // Takes out whatever `select` wants, of any owner, in the order of the queue.
  std::vector<Entry> withdraw_if(auto&& select) {
    std::vector<Entry> out;
    const std::lock_guard lock(mutex_);
    for (auto next = entries_.begin(); next != entries_.end();) {
      const auto at = next++;
      if (!select(std::as_const(*at))) continue;
      const auto [first, last] = by_owner_.equal_range(owner_of(*at));
      out.push_back(std::move(*at));
      by_owner_.erase(std::find_if(first, last, [&](const auto& one) { return one.second == at; }));
      entries_.erase(at);
    }
    if (!out.empty()) quieten();
    return out;
  }

 private:
  using List = std::list<Entry>;

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
    by_owner_.erase(by_owner_.lower_bound(owner_of(entries_.front())));  // its owner's oldest
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
  List entries_;
  std::multimap<std::uint64_t, typename List::iterator> by_owner_;  // an owner's in their order
};

// `users` is how many CQs or ids report there, under the lock of the Channels.
struct CompletionChannel : EventQueue<CqEvent> {
  using EventQueue::EventQueue;
  std::uint32_t users = 0;
};
struct CmChannel : EventQueue<process::CmNotice> {
  using EventQueue::EventQueue;
  std::uint32_t users = 0;
  bool hides_lost_requests = false;  // under the lock of the Channels
};
// The asynchronous events of one opening of the device.
using Context = EventQueue<AsyncEvent>;

// A channel that may be destroyed while a thread is on its way to wait there: programs that end do
// so (rping).  Such a thread finds nothing, for ever, and the descriptor is open as long as it
// waits.
template <class Queue>
using Shared = std::shared_ptr<Queue>;
using CompletionChannelHandle = Handle<Shared<CompletionChannel>>;
using CmChannelHandle = Handle<Shared<CmChannel>>;
using ContextHandle = Handle<Shared<Context>>;

// Where the events of a CQ, QP or SRQ go, and what the program calls it there.
struct EventTarget {
  CompletionChannelHandle channel{};  // a CQ's; null: none
  ContextHandle context{};            // nobody is told if it is closed
  std::uint64_t cookie = 0;
};

// The channels and contexts of a program, and which objects report where.  Any thread.
class Channels {
 public:
  static constexpr std::uint32_t kChannelsMax = 65536;  // of each kind, and of contexts
  static constexpr std::size_t kUnreadEventsMax =
      65'536;  // of a channel; but a user's, all are told

  Channels();

  // How often there was no place for one more channel.
  std::uint64_t limits_met() const { return limits_met_.load(std::memory_order_relaxed); }

  // Completion channels.
  Result<CompletionChannelHandle> create_completion();
  Result<void> destroy_completion(CompletionChannelHandle channel);
  Shared<CompletionChannel> completion(CompletionChannelHandle channel);

  // Contexts.  Each is told of all that happens to the port and the device, and of what happens to
  // its own objects.
  Result<ContextHandle> create_context();
  Result<void> destroy_context(ContextHandle context);
  Shared<Context> context(ContextHandle context);

  // The number of a CQ, QP or SRQ: the engine's cookie for it.  Until remove_object(), after which
  // none of its events comes out of anywhere.
  Result<std::uint64_t> add_object(const EventTarget& target);
  void remove_object(std::uint64_t object);
  // Empty if there is no such object.
  EventTarget target_of(std::uint64_t object);

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

  // True: whoever reads it will come back, for it has more to read.
  bool dispatch(const process::Notice& notice);

 private:
  template <class Queue>
  Result<Handle<Shared<Queue>>> create_in(Slots<Shared<Queue>>& slots);

  void dispatch_async(const process::AsyncNotice& notice);
  void set_id(process::ConnectionHandle id, CmChannelHandle channel);
  CmChannel* drop_id(process::ConnectionHandle id);

  std::atomic<std::uint64_t> limits_met_{};
  std::mutex mutex_;  // of the maps; the queues have their own
  Slots<Shared<CompletionChannel>> completion_;
  Slots<Shared<CmChannel>> cm_;
  Slots<Shared<Context>> contexts_;
  std::unordered_map<std::uint64_t, EventTarget> objects_;
  std::uint64_t next_object_ = 1;
  std::map<process::ConnectionHandle, CmChannelHandle> ids_;
};

}  // namespace verbena::client
