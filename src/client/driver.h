#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>

#include "base/error.h"
#include "base/thread_safety.h"
#include "base/time.h"
#include "client/poll_policy.h"
#include "client/spin_then_sleep.h"
#include "client/watches.h"
#include "os/clock.h"
#include "os/udp_link.h"

namespace verbena::client {

// Marks the members that the drive lock guards.  The lock itself belongs to the Driver, of which a
// program has one.
class VB_CAPABILITY("drive lock") DriveLock {};
inline DriveLock drive_lock;

class Driving;

// Decides which thread runs the protocol code ("drives"): the one that holds the drive lock.
//
// A thread that posts takes the lock if it is free and sends its packets itself; if not, the holder
// sees the work when it releases the lock.  A thread that polls an empty CQ takes the lock if it is
// free, and receives.  When no thread posts or polls, the progress thread drives; it sleeps on the
// Watches.
//
// A poll that finds packets returns their completions first.  Packets that became ready meanwhile,
// mostly acknowledgements, leave with the program's next post or at its next poll.  Small posts
// that follow unanswered packets wait in the same way, so that they leave as a batch.  If neither a
// poll nor a full batch comes soon, the progress thread sends them.
//
// A thread that is blocked until an event comes may wait for packets in place of the progress
// thread (BlockedWait).
class Driver {
 public:
  // A driving thread calls these functions.  Any thread may call those without REQUIRES.
  class Work {
   public:
    // Takes messages of the agent and, with `poll_mode`, packets; runs timers.  Returns true if
    // packets came.
    virtual bool receive(Time now, std::optional<os::UdpReceiver::Poll> poll_mode)
        VB_REQUIRES(drive_lock) = 0;
    // Sends queued packets and messages, and delivers completions and events.
    virtual void flush() VB_REQUIRES(drive_lock) = 0;
    // Returns true, once, if receive() or flush() ended early so that nobody waits long for the
    // lock.
    virtual bool take_unfinished() VB_REQUIRES(drive_lock) = 0;
    // Delivers completions and events only.
    virtual void deliver(Time now) VB_REQUIRES(drive_lock) = 0;
    virtual Time deadline() const VB_REQUIRES(drive_lock) = 0;
    // The progress thread calls begin_turn() before it receives, and end_turn() afterwards.
    // end_turn() returns true if the thread needs its next turn within PollPolicy::kCheckEvery.
    virtual void begin_turn() VB_REQUIRES(drive_lock) = 0;
    virtual bool end_turn(Time now) VB_REQUIRES(drive_lock) = 0;
    // Makes lanes wake the thread that waits for packets and is about to sleep (parks the lanes).
    // Returns false if there is something in a lane already: do not sleep.
    virtual bool park() VB_REQUIRES(drive_lock) = 0;
    // Unparks the lanes: they wake the thread no more.  Poll the lanes after this call.
    virtual void unpark() VB_REQUIRES(drive_lock) = 0;
    // Returns true if there is a lane.  Polling lanes costs no system call.
    virtual bool has_lanes() VB_REQUIRES(drive_lock) = 0;
    // Returns true if packets wait for room in a lane.
    virtual bool waits_for_room() VB_REQUIRES(drive_lock) = 0;
    // Returns true if something was posted and not sent yet.
    virtual bool has_posts() = 0;
    // Returns true if these posts may wait for more, because packets before them are unanswered.
    virtual bool posts_can_wait() const VB_REQUIRES(drive_lock) = 0;
    // Returns true if acknowledgements may leave together with the program's answers: the peer gets
    // both in one piece, or the acknowledgement first.  Some programs need that order, as they
    // count their completions by events.
    virtual bool acknowledgements_can_wait() const VB_REQUIRES(drive_lock) = 0;
    // Returns true if flush() has something to do for what was received or left over.
    virtual bool needs_flush() const VB_REQUIRES(drive_lock) = 0;
    // Returns true if the progress thread has work although the program polls.
    virtual bool needs_turn() const = 0;
    // Leaves the agent's messages to a thread that waits in place of the progress thread.  Returns
    // false if the progress thread must wait for messages, too.  After true, the progress thread is
    // woken as soon as it must wait for messages.
    virtual bool delegate_messages() = 0;
    // The progress thread calls these two without the lock: after its turn, and when `kind` is
    // ready.  A thread that waits in its place also calls the second one.
    virtual void after_turn() = 0;
    virtual void ready(Watches::Kind kind) = 0;

   protected:
    ~Work() = default;
  };

  // REQUIRES: both outlive this object.
  Driver(Work& work, Watches& watches) : work_(work), watches_(watches) {}
  ~Driver() { stop(); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Starts the progress thread.  kSystem.
  Result<void> start();
  // Stops the progress thread and waits for its end.
  void stop();

  // Sends a new post now, or leaves it to the thread that drives.
  void kick();
  // Receives, unless another thread does, because the program polls an empty CQ.
  void poll();
  // Lets the progress thread wait for packets from now on, because the program armed a CQ.
  void cq_armed();
  // Returns true while threads of the program poll CQs.
  bool program_polls() const { return policy_.is_left_to_polls(); }
  void wake() { watches_.wake(); }

  // ---- a thread that waits for an event ----
  // Lets this thread wait for packets in place of the progress thread.  Returns 0 if another thread
  // has that role already, or if the progress thread keeps it.
  ReceiverRole::Wait take_role(ReceiverRole::For events);
  // Ends the wait of a thread that has its event and will wait again.
  void leave_role(ReceiverRole::Wait wait);
  // Gives the role back to the progress thread.
  void give_role_back(ReceiverRole::Wait wait);
  // Call these two around a wait without the role.
  void begin_wait_without_role() { policy_.role().begin_wait_without(); }
  void end_wait_without_role() { policy_.role().end_wait_without(); }
  struct Received {
    bool event = false;
    bool packets = false;
    bool more = false;  // call receive_for_event() again before a sleep
    bool has_role = true;
  };
  // Receives packets.  Then calls take(), which returns true if it finds the event that the thread
  // waits for.  After true, packets to be sent may wait for the program's next post or poll.
  template <class Take>
  Received receive_for_event(ReceiverRole::Wait wait, os::UdpReceiver::Poll poll_mode, Take take);
  // Prepares a sleep, and returns the descriptors to sleep on.  Returns nothing if there is
  // something to receive already.
  std::optional<Watches::ForReceiver> prepare_sleep(ReceiverRole::Wait wait);
  // Notes that a signal handler may end a wait in a way that the thread does not see (longjmp).
  void expect_lost_receiver();
  // Notes that the agent's descriptor is ready.
  void agent_is_ready() { work_.ready(Watches::Kind::kAgent); }
  void count_receiver_wake() { receiver_wakes_.fetch_add(1, std::memory_order_relaxed); }

  // These functions return the number of wake-ups of the progress thread, without its regular
  // checks and timers, and of threads that waited for packets in its place.
  std::uint64_t progress_wakes() const { return progress_wakes_.load(std::memory_order_relaxed); }
  std::uint64_t receiver_wakes() const { return receiver_wakes_.load(std::memory_order_relaxed); }

  // Returns the Work, for the holder of the lock.
  Work& work() { return work_; }
  // Calls Work::flush() in a thread of the program, which must not fail if memory runs out: the
  // progress thread then continues.
  void try_flush() VB_REQUIRES(drive_lock);
  // Sends the packets that a poll or a post has deferred.  Commands call it first, because a
  // command may destroy the queue pair that has to acknowledge packets.
  void send_deferred() VB_REQUIRES(drive_lock) {
    if (is_deferred()) try_flush();
  }

  // These functions keep every thread from driving during a fork, so that the child's copy is
  // consistent enough to be abandoned.
  void before_fork();
  void after_fork_in_parent();
  static void after_fork_in_child();

 private:
  friend class Driving;

  // Releases the lock.  First does the work that other threads posted meanwhile.
  void release();
  void defer() VB_REQUIRES(drive_lock);
  bool is_deferred() const { return deferrals_.load(std::memory_order_relaxed) % 2 == 1; }
  void flush() VB_REQUIRES(drive_lock);
  void run();
  void turn();
  Time take_turn(const PollPolicy::Turn& turn, bool expired) VB_REQUIRES(drive_lock);
  void sleep(const PollPolicy::Turn& turn, Time deadline);
  void serve(std::span<const Watches::Kind> ready);
  void evict_lost_receiver(Time now);
  bool park_for_progress_thread();
  bool poll_lanes();
  void leave_work();
  bool park() VB_REQUIRES(drive_lock);
  void unpark() VB_REQUIRES(drive_lock);

  Work& work_;
  Watches& watches_;
  std::timed_mutex mutex_;
  PollPolicy policy_{};
  SpinThenSleep spin_{};
  // Makes the thread that releases the lock see all posts.  Each kick and each release increments
  // this counter.
  std::atomic<std::uint32_t> handover_{0};
  // Holds the value of handover_ at a kick that deferred its posts.  If handover_ is still the same
  // at the release, no other thread has posted meanwhile.
  std::optional<std::uint32_t> deferring_kick_ VB_GUARDED_BY(drive_lock){};
  Time sleeps_until_ VB_GUARDED_BY(drive_lock) = kNever;  // when the progress thread wakes up
  bool parks_ VB_GUARDED_BY(drive_lock) = false;  // the holder of the lock parks lanes later
  // This is true if the lanes are parked, or the descriptor of their doorbell may be readable.
  bool parked_ VB_GUARDED_BY(drive_lock) = false;
  // deferrals_ is odd while packets or posts wait for the next post or poll.  It is incremented at
  // the beginning and the end of each such wait.
  std::atomic<std::uint32_t> deferrals_{0};
  std::atomic<bool> work_is_left_{false};  // the progress thread has work, also without the role
  std::atomic<std::uint64_t> progress_wakes_{0};
  std::atomic<std::uint64_t> receiver_wakes_{0};
  std::atomic<bool> receiver_may_be_lost_{false};
  // The progress thread uses these two members for its checks.
  Time next_receiver_check_{};
  std::optional<std::uint64_t> wakes_checked_{};  // receiver_wakes_ at the last check
  std::atomic<bool> stop_{false};
  std::thread thread_{};
};

// Holds the drive lock for a scope.  After a try that failed, leave the scope at once.
class [[nodiscard]] VB_SCOPED_CAPABILITY Driving {
 public:
  explicit Driving(Driver& driver) VB_ACQUIRE(drive_lock) : driver_(driver) {
    driver_.mutex_.lock();
    held_ = true;
  }
  Driving(Driver& driver, std::try_to_lock_t) VB_ACQUIRE(drive_lock)
      : driver_(driver), held_(driver_.mutex_.try_lock()) {}
  Driving(Driver& driver, std::chrono::milliseconds give_up_after) VB_ACQUIRE(drive_lock)
      : driver_(driver), held_(driver_.mutex_.try_lock_for(give_up_after)) {}
  ~Driving() VB_RELEASE() {
    if (held_) driver_.release();
  }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

  explicit operator bool() const { return held_; }

 private:
  Driver& driver_;
  bool held_ = false;
};

template <class Take>
Driver::Received Driver::receive_for_event(ReceiverRole::Wait wait, os::UdpReceiver::Poll poll_mode,
                                           Take take) {
  const Driving lock(*this);
  Received received;
  received.has_role = policy_.role().has(wait);
  if (!received.has_role) return received;
  try {
    parks_ = true;
    unpark();
    if (is_deferred()) flush();
    const Time now = os::now();
    received.packets = work_.receive(now, poll_mode);
    work_.deliver(now);
    received.event = take();
    if (received.event && !work_.has_posts() && work_.acknowledgements_can_wait() &&
        policy_.waiter_may_defer()) {
      if (work_.needs_flush()) defer();
    } else if (work_.needs_flush() || work_.has_posts()) {
      flush();
      received.event = received.event || take();
    }
    if (!received.event) received.more = work_.take_unfinished();
  } catch (const std::bad_alloc&) {
    leave_work();
  }
  return received;
}

}  // namespace verbena::client
