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

// Marks the members that the drive lock guards.  The lock itself is a member of the Driver.  A
// program has one Driver.
class VB_CAPABILITY("drive lock") DriveLock {};
inline DriveLock drive_lock;

class Driving;

// Decides which thread runs the protocol code ("drives").  The thread that holds the drive lock
// drives.
//
// A thread that posts tries to take the lock, and then sends its packets itself.  If another thread
// has the lock, that thread finds the new posts when it releases the lock.  A thread that polls an
// empty CQ tries to take the lock, and then receives.  When no thread posts or polls, the progress
// thread drives.  The progress thread is a loop.  In each iteration it does the work that is due,
// and then sleeps on the Watches.
//
// A poll that finds packets returns their completions first.  Packets that became ready meanwhile,
// mostly acknowledgements, leave with the program's next post or at its next poll.  Small posts
// that follow unacknowledged packets wait in the same way, so that they leave as a batch.  If
// neither a poll nor a full batch comes soon, the progress thread sends them.
//
// A thread that is blocked until an event comes may wait for packets in place of the progress
// thread (BlockedWait).
class Driver {
 public:
  // The Driver calls these functions to do the work.  The thread that drives calls those with
  // VB_REQUIRES.  Any thread may call the others.
  class Work {
   public:
    // Receives the agent's messages, and packets if `poll_mode` has a value.  Runs timers.  Returns
    // true if packets came.
    virtual bool receive(Time now, std::optional<os::UdpReceiver::Poll> poll_mode)
        VB_REQUIRES(drive_lock) = 0;
    // Sends queued packets and messages, and delivers completions and events.
    virtual void flush() VB_REQUIRES(drive_lock) = 0;
    // Returns true if receive() or flush() ended early, before all work was done, so that no thread
    // waits long for the lock.  Then resets that state.
    virtual bool take_unfinished() VB_REQUIRES(drive_lock) = 0;
    // Delivers completions and events only.
    virtual void deliver(Time now) VB_REQUIRES(drive_lock) = 0;
    // Returns the time of the next timer.
    virtual Time deadline() const VB_REQUIRES(drive_lock) = 0;
    // The progress thread calls begin_iteration() before it receives, and end_iteration()
    // afterwards.  end_iteration() returns true if the thread needs its next iteration within
    // PollPolicy::kCheckEvery.
    virtual void begin_iteration() VB_REQUIRES(drive_lock) = 0;
    virtual bool end_iteration(Time now) VB_REQUIRES(drive_lock) = 0;
    // Parks the lanes: from now on the next packet in a lane wakes the thread that waits for
    // packets.  Call this before that thread sleeps.  Returns false if a lane already has a packet;
    // then do not sleep.
    virtual bool park() VB_REQUIRES(drive_lock) = 0;
    // Unparks the lanes: packets no longer wake the thread.  Poll the lanes after this call.
    virtual void unpark() VB_REQUIRES(drive_lock) = 0;
    // Returns true if there is a lane.  Polling lanes costs no system call.
    virtual bool has_lanes() VB_REQUIRES(drive_lock) = 0;
    // Returns true if packets wait until a full lane has space.
    virtual bool waits_for_lane_space() VB_REQUIRES(drive_lock) = 0;
    // Returns true if there are posts that were not sent yet.
    virtual bool has_posts() = 0;
    // Returns true if these posts may wait for later posts, because earlier packets are
    // unacknowledged.
    virtual bool posts_can_wait() const VB_REQUIRES(drive_lock) = 0;
    // Returns true if acknowledgements may leave together with the program's next post.  The peer
    // then gets both in one piece, or the acknowledgement first.  Some programs need that order,
    // because they count their completions by events.
    virtual bool acknowledgements_can_wait() const VB_REQUIRES(drive_lock) = 0;
    // Returns true if flush() has work to do, for example because something was received or an
    // earlier flush() ended early.
    virtual bool needs_flush() const VB_REQUIRES(drive_lock) = 0;
    // Returns true if the progress thread has work to do even while the program polls.
    virtual bool needs_progress_thread() const = 0;
    // Tries to delegate the agent's messages to the thread that waits in place of the progress
    // thread.  Returns false if the progress thread must wait for messages, too.  If the result is
    // true, the progress thread is woken as soon as it must wait for messages.
    virtual bool delegate_messages() = 0;
    // The progress thread calls after_iteration() after the work of an iteration, and on_ready()
    // when `kind` is ready.  It does not hold the lock then.  A thread that waits in its place also
    // calls on_ready().
    virtual void after_iteration() = 0;
    virtual void on_ready(Watches::Kind kind) = 0;

   protected:
    ~Work() = default;
  };

  // REQUIRES: both outlive this object.
  Driver(Work& work, Watches& watches) : work_(work), watches_(watches) {}
  ~Driver() { stop(); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Starts the progress thread.  kSystem: the system refuses to start a thread.
  Result<void> start();
  // Stops the progress thread and waits for its end.
  void stop();

  // Sends a new post now.  If another thread drives, that thread sends the post.
  void kick();
  // Receives packets, because the program polls an empty CQ.  Does nothing if another thread
  // drives.
  void poll();
  // Makes the progress thread wait for packets from now on, because the program armed a CQ.
  void cq_armed();
  // Returns true while threads of the program poll CQs.
  bool program_polls() const { return policy_.program_polls(); }
  void wake() { watches_.wake(); }

  // ---- a thread that waits for an event ----
  // Lets this thread wait for packets in place of the progress thread.  Returns 0 if another thread
  // has that role and does not yield it, or if the progress thread does not give it away now.
  ReceiverRole::Wait take_role(ReceiverRole::For events);
  // Ends the wait of a thread that has its event and will probably wait again.  The thread retains
  // the role meanwhile, unless another thread waits for completions without the role.
  void end_wait_with_role(ReceiverRole::Wait wait);
  // Gives the role back to the progress thread.
  void give_role_back(ReceiverRole::Wait wait);
  // Call the first function before a wait without the role, and the second function after that
  // wait.
  void begin_wait_without_role() { policy_.role().begin_wait_without_role(); }
  void end_wait_without_role() { policy_.role().end_wait_without_role(); }
  struct Received {
    bool event = false;    // take() found the event
    bool packets = false;  // packets came
    bool more = false;     // call receive_for_event() again before a sleep
    bool has_role = true;
  };
  // Receives packets.  Then calls take(), which returns true if it finds the event that the thread
  // waits for.  If take() finds it, packets to be sent may wait for the program's next post or
  // poll.
  template <class Take>
  Received receive_for_event(ReceiverRole::Wait wait, os::UdpReceiver::Poll poll_mode, Take take);
  // Prepares a sleep, and returns the descriptors to sleep on.  Returns none if there is something
  // to receive already, or if the thread does not have the role any more.
  std::optional<Watches::ForReceiver> prepare_sleep(ReceiverRole::Wait wait);
  // Notes that a signal handler may end the receiver's wait by longjmp(), so that the thread never
  // gives the role back.  The progress thread checks for that from now on.
  void expect_lost_receiver();
  // Notes that the agent's descriptor is ready.
  void note_agent_is_ready() { work_.on_ready(Watches::Kind::kAgent); }
  void count_receiver_wake() { receiver_wakes_.fetch_add(1, std::memory_order_relaxed); }

  // progress_wakes() counts the wake-ups of the progress thread, without those for its regular
  // checks and timers.  receiver_wakes() counts the wake-ups of threads that waited for packets in
  // its place.
  std::uint64_t progress_wakes() const { return progress_wakes_.load(std::memory_order_relaxed); }
  std::uint64_t receiver_wakes() const { return receiver_wakes_.load(std::memory_order_relaxed); }

  // Returns the Work, for the holder of the lock.
  Work& work() { return work_; }
  // Calls Work::flush().  If memory runs out, does not throw, but makes the progress thread
  // continue the work.
  void try_flush() VB_REQUIRES(drive_lock);
  // Sends the packets that a poll or a post has deferred.  Each command begins with this call,
  // because the command may destroy the queue pair that has to acknowledge packets.
  void send_deferred() VB_REQUIRES(drive_lock) {
    if (is_deferred()) try_flush();
  }

  // These functions prevent other threads from driving during a fork, unless before_fork() waits in
  // vain for the lock.  So the child gets a consistent copy of this object, whose descriptors the
  // child can close.
  void before_fork();
  void after_fork_in_parent();
  static void after_fork_in_child();

 private:
  friend class Driving;

  // Releases the lock.  Also sends the posts that other threads made while the lock was taken.
  void release();
  void defer() VB_REQUIRES(drive_lock);
  bool is_deferred() const { return deferrals_.load(std::memory_order_relaxed) % 2 == 1; }
  void flush() VB_REQUIRES(drive_lock);
  void run();
  void iterate();
  Time work_under_lock(const PollPolicy::Iteration& iteration, bool deferral_expired)
      VB_REQUIRES(drive_lock);
  void sleep(const PollPolicy::Iteration& iteration, Time deadline);
  void handle_ready(std::span<const Watches::Kind> ready);
  void evict_lost_receiver(Time now);
  bool park_for_progress_thread();
  bool poll_lanes();
  // tests/system/instructions.sh does not count this function.
  [[gnu::noinline]] bool sleep_until_packets();
  void pass_work_to_progress_thread();
  bool park() VB_REQUIRES(drive_lock);
  void unpark() VB_REQUIRES(drive_lock);

  Work& work_;
  Watches& watches_;
  std::timed_mutex mutex_;
  PollPolicy policy_{};
  SpinThenSleep spin_{};
  // Each kick and each release of the lock increments this counter, so that the thread that
  // releases the lock sees all posts.
  std::atomic<std::uint32_t> handover_{0};
  // Holds the value of handover_ at a kick that deferred its posts.  If handover_ is still the same
  // at the release, no other thread has posted meanwhile.
  std::optional<std::uint32_t> deferring_kick_ VB_GUARDED_BY(drive_lock){};
  Time sleeps_until_ VB_GUARDED_BY(drive_lock) = kNever;  // the end of the progress thread's sleep
  bool will_park_ VB_GUARDED_BY(drive_lock) = false;  // the holder of the lock parks the lanes soon
  // This flag is true if the lanes are parked, or if the descriptor of their doorbell may be
  // readable.
  bool parked_ VB_GUARDED_BY(drive_lock) = false;
  // This counter is odd while packets or posts are deferred until the next post or poll.  It is
  // incremented at the beginning and at the end of each deferral.
  std::atomic<std::uint32_t> deferrals_{0};
  // Another thread has passed work to the progress thread, which does it even without the role.
  std::atomic<bool> progress_thread_has_work_{false};
  std::atomic<std::uint64_t> progress_wakes_{0};
  std::atomic<std::uint64_t> receiver_wakes_{0};
  // A signal handler may have ended the wait of the receiver by longjmp().
  std::atomic<bool> receiver_may_be_lost_{false};
  // The progress thread uses these two members to check whether the receiver is lost.
  Time next_receiver_check_{};
  std::optional<std::uint64_t> wakes_checked_{};  // receiver_wakes_ at the last check
  std::atomic<bool> stop_{false};
  std::thread thread_{};
};

// Holds the drive lock for a scope.  The constructors with a try or a timeout may fail to take the
// lock.  Then the caller must leave the scope at once.
class [[nodiscard]] VB_SCOPED_CAPABILITY Driving {
 public:
  explicit Driving(Driver& driver) VB_ACQUIRE(drive_lock) : driver_(driver) {
    driver_.mutex_.lock();
    has_lock_ = true;
  }
  Driving(Driver& driver, std::try_to_lock_t) VB_ACQUIRE(drive_lock)
      : driver_(driver), has_lock_(driver_.mutex_.try_lock()) {}
  Driving(Driver& driver, std::chrono::milliseconds give_up_after) VB_ACQUIRE(drive_lock)
      : driver_(driver), has_lock_(driver_.mutex_.try_lock_for(give_up_after)) {}
  ~Driving() VB_RELEASE() {
    if (has_lock_) driver_.release();
  }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

  explicit operator bool() const { return has_lock_; }

 private:
  Driver& driver_;
  bool has_lock_ = false;
};

template <class Take>
Driver::Received Driver::receive_for_event(ReceiverRole::Wait wait, os::UdpReceiver::Poll poll_mode,
                                           Take take) {
  const Driving lock(*this);
  Received received;
  received.has_role = policy_.role().belongs_to(wait);
  if (!received.has_role) return received;
  try {
    will_park_ = true;
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
    pass_work_to_progress_thread();
  }
  return received;
}

}  // namespace verbena::client
