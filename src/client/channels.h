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
#include "verbena/c_api.h"

namespace verbena::client {

// CqEvent is an event of a completion queue, and AsyncEvent is an asynchronous event of a context.
// `object` is the number that Channels::add_object() has returned for the CQ, QP or SRQ.  It is 0
// for an event of a port or of the device.
struct CqEvent {
  std::uint64_t object = 0;
  std::uint64_t cookie = 0;
};
struct AsyncEvent {
  std::uint32_t type = 0;
  std::uint64_t object = 0;
  std::uint64_t cookie = 0;
  PortId port{};  // only for an event of a port
};

// Returns true for an event of a port.  `type` is an enum ibv_event_type.
bool is_port_event(std::uint32_t type);

// Returns the owner of a queue entry: when the owner is removed, its entries are withdrawn from the
// queue.
inline std::uint64_t owner_of(const CqEvent& event) { return event.object; }
inline std::uint64_t owner_of(const AsyncEvent& event) { return event.object; }
inline std::uint64_t owner_of(const process::CmNotice& notice) { return notice.id.value; }

// Holds a queue with a descriptor that is readable exactly while the queue has entries.
// Withdrawing the entries of one owner takes the same time however many other entries there are.
//
// Each entry posts the descriptor, although older entries are unread, because a program may watch
// the descriptor edge-triggered (EPOLLET).  Only one thread need not be woken: a reader that
// receives packets itself takes an entry, and then posts once if entries remain.
//
// Invariant, under the lock: the descriptor is posted (readable) while there are entries.  There
// are two exceptions: a reader has taken the post but not yet the lock, or a reader receives
// packets itself.  That reader posts again if entries remain.  If another reader has taken the last
// entry, that reader waits again.
template <class Entry>
class EventQueue {
 public:
  explicit EventQueue(os::EventFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.fd(); }

  void push(Entry entry) {
    const std::lock_guard lock(mutex_);
    List entry_list;
    entry_list.push_back(std::move(entry));
    by_owner_.emplace(owner_of(entry_list.front()), entry_list.begin());
    entries_.splice(entries_.end(), entry_list);
    if (reader_receives_) {
      withheld_ = true;
    } else {
      post();
    }
  }

  // Takes the next entry.  Returns false if there is none.
  bool try_next(Entry& entry) {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return false;
    pop(entry);
    make_unreadable_if_empty();
    return true;
  }

  // Notes that a thread receives packets, and will call take_received() for the entries that the
  // packets cause.  So these entries need not make the descriptor readable.
  void will_receive() {
    const std::lock_guard lock(mutex_);
    reader_receives_ = true;
  }
  // Ends what will_receive() has begun.  Takes the next entry; returns false if there is none.
  bool take_received(Entry& entry) {
    const std::lock_guard lock(mutex_);
    reader_receives_ = false;
    const bool withheld = std::exchange(withheld_, false);
    if (entries_.empty()) return false;
    pop(entry);
    if (withheld && !entries_.empty()) post();
    make_unreadable_if_empty();
    return true;
  }
  // Returns false if a reader may have to wait although the descriptor was readable; see
  // os::EventFd.
  bool try_take_never_waits() const { return fd_.try_take_never_waits(); }

  // Takes the next entry, and waits as read(2) on the descriptor does.  Returns 0 or the errno of
  // read(2).  It is a cancellation point.
  int next(Entry& entry) {
    ::pthread_testcancel();
    std::optional<std::uint64_t> posts_before_wait;  // posts_ when the wait began
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (posts_before_wait) --sleepers_;
        if (!entries_.empty()) {
          pop(entry);
          const bool took_only_post = posts_before_wait && *posts_before_wait + 1 == posts_;
          if (took_only_post && fd_.try_take_never_waits()) may_be_readable_ = false;
          make_unreadable_if_empty();
          if (posts_before_wait && !entries_.empty()) post();
          return 0;
        }
        posts_before_wait = posts_;
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

  // Removes and returns the entries of `owner` that `select` accepts, oldest first.
  std::vector<Entry> withdraw(std::uint64_t owner, auto&& select) {
    std::vector<Entry> out;
    const std::lock_guard lock(mutex_);
    const auto [first, last] = by_owner_.equal_range(owner);
    for (auto next = first; next != last;) {
      const auto current = next++;
      if (!select(std::as_const(*current->second))) continue;
      out.push_back(std::move(*current->second));
      entries_.erase(current->second);
      by_owner_.erase(current);
    }
    if (!out.empty()) make_unreadable_if_empty();
    return out;
  }
  std::vector<Entry> withdraw(std::uint64_t owner) {
    return withdraw(owner, [](const Entry&) { return true; });
  }

  // Removes and returns the entries of any owner that `select` accepts, oldest first.
  std::vector<Entry> withdraw_if(auto&& select) {
    std::vector<Entry> out;
    const std::lock_guard lock(mutex_);
    for (auto next = entries_.begin(); next != entries_.end();) {
      const auto current = next++;
      if (!select(std::as_const(*current))) continue;
      const auto [first, last] = by_owner_.equal_range(owner_of(*current));
      out.push_back(std::move(*current));
      by_owner_.erase(
          std::find_if(first, last, [&](const auto& item) { return item.second == current; }));
      entries_.erase(current);
    }
    if (!out.empty()) make_unreadable_if_empty();
    return out;
  }

 private:
  using List = std::list<Entry>;

  // Cleans up if a signal or a cancellation ends the sleep of a thread before the thread takes an
  // entry.  Some C libraries cancel the thread after read(2) has taken the post, so the destructor
  // posts again.
  struct Sleep {
    EventQueue& queue;
    bool has_taken = false;
    ~Sleep() {
      if (has_taken) return;
      const std::lock_guard lock(queue.mutex_);
      --queue.sleepers_;
      queue.make_unreadable_if_empty();
      if (!queue.entries_.empty()) queue.post();
    }
  };

  // REQUIRES: the caller of pop(), post() or make_unreadable_if_empty() holds the lock.
  void pop(Entry& entry) {
    by_owner_.erase(by_owner_.lower_bound(owner_of(entries_.front())));  // the owner's oldest entry
    entry = std::move(entries_.front());
    entries_.pop_front();
  }
  void post() {
    ++posts_;
    may_be_readable_ = true;
    fd_.post();
  }
  // Makes the descriptor unreadable if the queue is empty.  If try_take() may wait and a reader
  // sleeps, does not take the post: the reader takes the post, finds no entry and sleeps again.  If
  // both tried to take the post, the slower one would wait.
  void make_unreadable_if_empty() {
    if (!entries_.empty() || !may_be_readable_) return;
    if (sleepers_ != 0 && !fd_.try_take_never_waits()) return;
    (void)fd_.try_take();
    may_be_readable_ = false;
  }

  os::EventFd fd_;
  std::uint64_t posts_ = 0;       // the number of calls of post()
  std::uint32_t sleepers_ = 0;    // readers that sleep in next()
  bool reader_receives_ = false;  // will_receive() was called, but not yet take_received()
  bool withheld_ = false;         // entries have come since will_receive(), and were not posted
  bool may_be_readable_ = false;  // posted, and not taken since; a sleeper may have taken the post
  std::mutex mutex_;
  List entries_;
  std::multimap<std::uint64_t, typename List::iterator> by_owner_;  // oldest first for each owner
};

// These two channels hold the events of CQs or of ids.  `users` counts the CQs or ids that report
// to the channel.  The lock of Channels guards `users`.
struct CompletionChannel : EventQueue<CqEvent> {
  using EventQueue::EventQueue;
  std::uint32_t users = 0;
};
struct CmChannel : EventQueue<process::CmNotice> {
  using EventQueue::EventQueue;
  std::uint32_t users = 0;
  bool hides_lost_requests = false;  // guarded by the lock of Channels
};
// Holds the asynchronous events of one opening of a device.
struct Context : EventQueue<AsyncEvent> {
  using EventQueue::EventQueue;
  std::uint32_t device = VB_ALL_DEVICES;  // guarded by the lock of Channels
};

// A shared pointer belongs to Channels and to each thread that is about to wait on the channel,
// because some programs (rping, at its end) destroy a channel while a thread waits on it.  The
// thread then never gets an event, and the descriptor remains open while the thread waits.
template <class Queue>
using Shared = std::shared_ptr<Queue>;
using CompletionChannelHandle = Handle<Shared<CompletionChannel>>;
using CmChannelHandle = Handle<Shared<CmChannel>>;
using ContextHandle = Handle<Shared<Context>>;

// Describes where the events of a CQ, QP or SRQ go, and the cookie that the events carry.
struct EventTarget {
  CompletionChannelHandle channel{};  // for a CQ; null: none
  ContextHandle context{};            // if the context is closed, its events are dropped
  std::uint64_t cookie = 0;
};

// Owns the channels and contexts of a program, and the destination of each object's events.  Any
// thread may call any function.
class Channels {
 public:
  // Limits the channels of each kind, and the contexts.
  static constexpr std::uint32_t kChannelsMax = 65536;
  // Limits the unread user events (RDMA_CM_EVENT_USER) of each event channel.  Other events have no
  // limit, because they must be reported.
  static constexpr std::size_t kUnreadEventsMax = 65'536;

  Channels();

  // Returns the number of refusals because of kChannelsMax or kUnreadEventsMax.
  std::uint64_t limit_refusals() const { return limit_refusals_.load(std::memory_order_relaxed); }

  // The next functions manage completion channels.
  Result<CompletionChannelHandle> create_completion();
  Result<void> destroy_completion(CompletionChannelHandle channel);
  Shared<CompletionChannel> completion(CompletionChannelHandle channel);

  // The next functions manage contexts.  Each context gets all events of its device and of the
  // ports of the device, and the events of its own objects.
  Result<ContextHandle> create_context(std::uint32_t device = VB_ALL_DEVICES);
  Result<void> destroy_context(ContextHandle context);
  Shared<Context> context(ContextHandle context);

  // Returns a number for a CQ, QP or SRQ.  The engine uses the number as its cookie for the object.
  // The number is valid until remove_object().  After that, no queue returns an event of the
  // object.
  Result<std::uint64_t> add_object(const EventTarget& target);
  void remove_object(std::uint64_t object);
  // Returns an empty EventTarget if there is no such object.
  EventTarget target_of(std::uint64_t object);

  // The next functions manage event channels of the RDMA CM.
  Result<CmChannelHandle> create_cm();
  Result<void> destroy_cm(CmChannelHandle channel);
  Shared<CmChannel> cm(CmChannelHandle channel);
  // From now on, hides the events of each id that a CONNECT_REQUEST has created, until the program
  // has accepted the request.
  Result<void> hide_lost_requests(CmChannelHandle channel);
  Result<void> add_id(process::ConnectionHandle id, CmChannelHandle channel);
  // Removes the id, and returns its unread notices.  If they include connection requests, also
  // removes the new ids of the requests, and drops the events of these ids.
  std::vector<process::CmNotice> remove_id(process::ConnectionHandle id);
  // Drops the unread events of one join of a multicast group.
  void remove_group(process::ConnectionHandle id, std::uint64_t group);
  Result<void> migrate_id(process::ConnectionHandle id, CmChannelHandle channel);
  // Queues an event that the program itself has written, in the id's channel.  kNoResources: the
  // event is a user event, and kUnreadEventsMax events are unread.
  Result<void> write_event(process::CmNotice&& notice);

  // Queues an event in its channel or context.  Returns true if the event went to an event channel
  // that already had events, so that its reader will take more events.
  bool dispatch(const process::Notice& notice);

 private:
  template <class Queue>
  Result<Handle<Shared<Queue>>> create_in(Slots<Shared<Queue>>& slots);

  void dispatch_async(const process::AsyncNotice& notice);
  void set_id(process::ConnectionHandle id, CmChannelHandle channel);
  CmChannel* drop_id(process::ConnectionHandle id);

  std::atomic<std::uint64_t> limit_refusals_{};
  std::mutex mutex_;  // guards the maps; each queue has its own lock
  Slots<Shared<CompletionChannel>> completion_;
  Slots<Shared<CmChannel>> cm_;
  Slots<Shared<Context>> contexts_;
  std::unordered_map<std::uint64_t, EventTarget> objects_;
  std::uint64_t next_object_ = 1;
  std::map<process::ConnectionHandle, CmChannelHandle> ids_;
};

}  // namespace verbena::client
