#include "client/driver.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <new>
#include <tuple>
#include <utility>

#include "client/busy_processor.h"
#include "os/clock.h"
#include "os/shared_processor.h"
#include "os/signal_block.h"
#include "os/system_call.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

// Limits the time that a fork waits for the thread that drives.  Without a limit, the fork might
// wait for ever: a signal handler that interrupted the thread that drives may call fork().
constexpr Duration kForkWaitMax = std::chrono::seconds(1);

// Limits the time that packets are deferred until the program's next poll.  A program that polls
// usually polls again within a few microseconds.  If it does not, the progress thread sends the
// packets.
constexpr Duration kDeferralMax = std::chrono::microseconds(50);

// The progress thread checks at this interval whether packets are unread, if the program has signal
// handlers.  A handler may jump out of the wait of the thread that waits for packets, and then no
// thread receives them.
constexpr Duration kReceiverCheckEvery = std::chrono::milliseconds(100);

// A poll that sleeps returns to the program after this time at the latest, because the program may
// have other work between its polls.
constexpr timespec kPollSleepMax{.tv_sec = 0, .tv_nsec = 500'000};

// A thread asks the kernel for its processors at most once in this time.
constexpr Duration kProcessorsCheckEvery = std::chrono::milliseconds(10);

// Records how the empty polls of this thread have passed the time.
struct IdleThread {
  os::SharedProcessor shared{};
  BusyProcessor busy{};
  Time processors_checked_at{};
  bool has_one_processor = false;

  // Returns true if other threads certainly need this thread's processor: the peer, if there is
  // only one, or a thread that computes.
  bool processor_is_busy(Time now) const { return has_one_processor || busy.should_sleep(now); }
  // Lets other threads run.  If another thread always wants this processor, sleeps for a moment, so
  // that the scheduler looks for a free processor.
  void yield() {
    const Time before = os::now();
    if (before - processors_checked_at >= kProcessorsCheckEvery) {
      has_one_processor = os::has_one_processor();
      processors_checked_at = before;
    }
    os::yield_processor();
    const Time after = os::now();
    busy.yielded(before, after);
    if (shared.yielded(before, after) && !has_one_processor) os::sleep_shortest();
  }
};
constinit thread_local IdleThread idle_thread;

// This flag is true while this thread holds the drive lock for a fork.
thread_local bool fork_holds_lock = false;

}  // namespace

Result<void> Driver::start() {
  thread_ = VB_TRY(os::start_thread("verbena", [this] { run(); }));
  return {};
}

void Driver::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  wake();
  thread_.join();
}

void Driver::run() {
  // No event tells when memory is available again, so the thread waits and then tries again.
  constexpr auto kPause = std::chrono::milliseconds(10);
  while (!stop_.load()) {
    try {
      iterate();
    } catch (const std::bad_alloc&) {
      // The next iteration finishes the work of this iteration.
      std::this_thread::sleep_for(kPause);
    }
  }
}

void Driver::iterate() {
  evict_lost_receiver(os::now());
  const PollPolicy::Iteration iteration = policy_.begin_iteration(os::now());
  bool deferral_expired = false;
  if (const std::uint32_t deferrals = deferrals_.load();
      iteration.program_receives && is_deferred()) {
    const auto ready = watches_.wait(Watches::For::kAllButSockets, os::now() + kDeferralMax);
    if (!ready.empty()) {
      policy_.end_iteration(iteration);
      return handle_ready(ready);
    }
    deferral_expired = deferrals_.load() == deferrals;
  }
  Time deadline = os::now() + PollPolicy::kCheckEvery;
  if (!iteration.program_receives || iteration.lent || deferral_expired ||
      work_.needs_progress_thread()) {
    const Driving lock(*this);
    deadline = work_under_lock(iteration, deferral_expired);
    sleeps_until_ = deadline;
  }
  work_.after_iteration();
  policy_.end_iteration(iteration);
  sleep(iteration, deadline);
}

// Does the progress thread's work of one iteration under the lock.  Returns the time of its next
// iteration.
Time Driver::work_under_lock(const PollPolicy::Iteration& iteration, bool deferral_expired) {
  const Time work_start = os::now();
  const bool has_passed_work = progress_thread_has_work_.exchange(false);
  bool next_iteration_is_soon = iteration.checks_again;
  if (!iteration.lent || deferral_expired || has_passed_work || work_.needs_progress_thread() ||
      work_.deadline() <= work_start) {
    will_park_ = !iteration.program_receives;
    if (deferral_expired && is_deferred()) {
      policy_.deferral_expired();
      deferrals_.fetch_add(1);  // ends the deferral, so that flush() skips deferred_was_sent()
      try_flush();
    }
    // Sends deferred packets before it handles messages and timers, which may end a connection.
    send_deferred();
    const Time now = os::now();
    work_.begin_iteration();
    // Another thread may have taken the role meanwhile, and may sleep.  That thread needs parked
    // lanes, so do not unpark them.
    if (!iteration.program_receives && !policy_.is_lent()) unpark();
    // Polls the sockets before a timer expires, because the packet that stops the timer may have
    // arrived.
    const bool polls_sockets =
        (!iteration.lent && policy_.should_poll_sockets()) || work_.deadline() <= now;
    const bool found = work_.receive(
        now, polls_sockets ? std::optional(os::UdpReceiver::Poll::kAll) : std::nullopt);
    policy_.sockets_polled(iteration, found, now);
    flush();
  }
  next_iteration_is_soon = work_.end_iteration(os::now()) || next_iteration_is_soon;
  const Time due = work_.deadline();
  if (next_iteration_is_soon) return std::min(os::now() + PollPolicy::kCheckEvery, due);
  return iteration.lent && receiver_may_be_lost_.load() ? std::min(next_receiver_check_, due) : due;
}

void Driver::sleep(const PollPolicy::Iteration& iteration, Time deadline) {
  std::span<const Watches::Kind> ready;
  const auto count_wake = [&] {
    const bool woken = std::ranges::any_of(
        ready, [](Watches::Kind kind) { return kind != Watches::Kind::kCheck; });
    if (woken) progress_wakes_.fetch_add(1, std::memory_order_relaxed);
  };
  if (iteration.program_receives) {
    const bool delegates_messages = iteration.lent && work_.delegate_messages();
    ready = watches_.wait(
        delegates_messages ? Watches::For::kNotForReceiver : Watches::For::kAllButSockets,
        deadline);
    count_wake();
  } else {
    const auto wait = [&](Time until) {
      const bool sleeps = until > Time{};
      const bool lanes_have_packets = sleeps ? !park_for_progress_thread() : poll_lanes();
      ready = watches_.wait(Watches::For::kAll, lanes_have_packets ? Time{} : until);
      if (sleeps) count_wake();
      const bool packets =
          lanes_have_packets || std::ranges::any_of(ready, [](Watches::Kind kind) {
            return kind == Watches::Kind::kSockets || kind == Watches::Kind::kLanes;
          });
      return std::pair(ready.size() + (lanes_have_packets ? 1 : 0), packets);
    };
    (void)spin_.wait(deadline, os::now, os::yield_processor, wait,
                     [this] { return policy_.will_let_program_receive(os::now()); });
  }
  handle_ready(ready);
}

void Driver::handle_ready(std::span<const Watches::Kind> ready) {
  for (const Watches::Kind kind : ready) {
    if (kind == Watches::Kind::kSockets || kind == Watches::Kind::kLanes) {
      policy_.packets_came();
      if (kind != Watches::Kind::kLanes) continue;
      const Driving lock(*this);
      parked_ = true;  // so that unpark() clears the doorbell, even if it rang during a spin
    } else if (kind != Watches::Kind::kWake) {
      work_.on_ready(kind);
    }
  }
}

void Driver::release() VB_NO_THREAD_SAFETY_ANALYSIS {
  // If a lane is full, its peer must be asked for a wake-up when there is space.  A thread that is
  // about to park the lanes asks for that itself.  It does not ask for posts of other threads that
  // try_flush() sends below, so later rounds of this loop wake the receiver, which then asks.
  bool will_ask_for_space = std::exchange(will_park_, false);
  for (;;) {
    // Wakes the progress thread if a new timer is due before the thread's sleep ends.
    if (const Time due = work_.deadline(); due < sleeps_until_) {
      sleeps_until_ = due;
      wake();
    }
    // Wakes the receiver, which parks the lanes and so asks the peers for a wake-up.
    if (!std::exchange(will_ask_for_space, false) && work_.waits_for_lane_space() &&
        !policy_.program_polls()) {
      watches_.wake_receiver();
    }
    if (work_.take_unfinished()) pass_work_to_progress_thread();
    const auto deferring_kick = std::exchange(deferring_kick_, std::nullopt);
    mutex_.unlock();
    const bool only_deferred_posts = handover_.fetch_add(1) == deferring_kick;
    if (!work_.has_posts() || only_deferred_posts || !mutex_.try_lock()) return;
    try_flush();
  }
}

void Driver::kick() {
  const std::uint32_t kick = handover_.fetch_add(1) + 1;
  const Driving lock(*this, std::try_to_lock);
  if (!lock) return;
  if (work_.posts_can_wait() && policy_.may_defer()) {
    defer();
    deferring_kick_ = kick;
  } else {
    try_flush();
  }
}

void Driver::defer() {
  if (!is_deferred()) deferrals_.fetch_add(1);
}

void Driver::poll() {
  policy_.polled();
  bool found = false;
  Time now;
  {
    const Driving lock(*this, std::try_to_lock);
    if (!lock) return;
    try {
      if (is_deferred()) flush();
      now = os::now();
      found = work_.receive(now, os::UdpReceiver::Poll::kLikely);
      if (found && policy_.may_defer()) {
        work_.deliver(now);
        defer();
      } else if (work_.needs_flush() || work_.has_posts()) {
        flush();
      }
    } catch (const std::bad_alloc&) {
      pass_work_to_progress_thread();
    }
  }
  if (found) policy_.took_packets();
  if (!policy_.should_yield(found, idle_thread.processor_is_busy(now))) return;
  if (!idle_thread.busy.should_sleep(now) || !sleep_until_packets()) idle_thread.yield();
}

// Sleeps until packets or messages come, for kPollSleepMax at most, and receives them.  Returns
// false, without a sleep, if another thread waits for packets.
bool Driver::sleep_until_packets() {
  policy_.poll_will_sleep();
  const os::SignalBlock signals;  // a handler that jumps out of the sleep would keep the role
  const ReceiverRole::Wait wait = take_role(ReceiverRole::For::kCompletions);
  if (wait == 0) return false;
  if (const auto descriptors = prepare_sleep(wait)) {
    std::array<pollfd, std::tuple_size_v<Watches::ForReceiver>> waits{};
    for (std::size_t i = 0; i < waits.size(); ++i) {
      waits[i] = {.fd = (*descriptors)[i], .events = POLLIN, .revents = 0};
    }
    timespec longest = kPollSleepMax;  // the system call overwrites it
    const auto ready = os::system_call(SYS_ppoll, waits.data(), waits.size(), &longest, nullptr, 0);
    if (ready > 0) count_receiver_wake();
    if (waits[Watches::kAgentForReceiver].revents != 0) note_agent_is_ready();
  }
  // Says that its event came, so that acknowledgements may leave with the program's next post.
  (void)receive_for_event(wait, os::UdpReceiver::Poll::kAll, [] { return true; });
  end_wait_with_role(wait);
  return true;
}

void Driver::cq_armed() {
  if (policy_.cq_armed()) wake();
}

void Driver::try_flush() {
  try {
    flush();
  } catch (const std::bad_alloc&) {
    pass_work_to_progress_thread();
  }
}

// Makes the progress thread finish the work, even if another thread has the role of the receiver.
void Driver::pass_work_to_progress_thread() {
  progress_thread_has_work_.store(true);
  wake();
}

// ---- the role of the receiver

ReceiverRole::Wait Driver::take_role(ReceiverRole::For events) {
  const ReceiverRole::TakenRole role = policy_.take_role(events, os::now());
  if (role.from_progress_thread) wake();
  if (role.from_waiter) watches_.wake_receiver();
  return role.wait;
}

void Driver::end_wait_with_role(ReceiverRole::Wait wait) {
  if (policy_.role().another_waits_without_role()) {
    give_role_back(wait);
  } else if (policy_.role().end_wait(wait)) {
    watches_.check_at(os::now() + PollPolicy::kCheckEvery);
  }
}

void Driver::give_role_back(ReceiverRole::Wait wait) {
  {
    const Driving lock(*this);
    if (!policy_.take_back(wait, os::now())) return;
  }
  wake();
}

void Driver::expect_lost_receiver() {
  if (!receiver_may_be_lost_.exchange(true)) wake();
}

// Takes the role away from a waiter that was not woken since the last check although packets or
// messages are unread.
void Driver::evict_lost_receiver(Time now) {
  if (!policy_.is_lent() || !receiver_may_be_lost_.load() || now < next_receiver_check_) return;
  next_receiver_check_ = now + kReceiverCheckEvery;
  const std::uint64_t wakes = receiver_wakes();
  if (std::exchange(wakes_checked_, wakes) != wakes) return;
  const Driving lock(*this);
  if (watches_.receiver_has_work()) policy_.role().evict();
}

// Parks the lanes before the progress thread sleeps.  Returns false if there is something to
// receive.
bool Driver::park_for_progress_thread() {
  const Driving lock(*this);
  if (policy_.is_lent()) return true;  // another thread parks the lanes, and wakes this thread
  will_park_ = true;
  if (park()) return true;
  policy_.packets_came();
  return false;
}

// Polls the lanes while the progress thread spins, so that no peer must wake it.  Returns true if
// packets came.
bool Driver::poll_lanes() {
  const Driving lock(*this, std::try_to_lock);
  if (!lock || policy_.is_lent() || !work_.has_lanes()) return false;
  will_park_ = true;
  try {
    const bool found = work_.receive(os::now(), os::UdpReceiver::Poll::kLikely);
    if (work_.needs_flush()) flush();
    return found;
  } catch (const std::bad_alloc&) {
    pass_work_to_progress_thread();
    return false;
  }
}

std::optional<Watches::ForReceiver> Driver::prepare_sleep(ReceiverRole::Wait wait) {
  const Driving lock(*this);
  if (!policy_.role().belongs_to(wait)) return {};
  will_park_ = true;
  if (!park()) return {};
  return watches_.for_receiver();
}

bool Driver::park() {
  parked_ = true;
  return work_.park();
}

void Driver::unpark() {
  if (std::exchange(parked_, false)) work_.unpark();
}

void Driver::flush() {
  if (is_deferred()) {
    deferrals_.fetch_add(1);
    policy_.deferred_was_sent();
  }
  work_.flush();
}

void Driver::before_fork() { fork_holds_lock = mutex_.try_lock_for(kForkWaitMax); }

void Driver::after_fork_in_parent() {
  if (!std::exchange(fork_holds_lock, false)) return;
  mutex_.unlock();
  wake();  // the progress thread sends posts that were made during the fork
}

void Driver::after_fork_in_child() { fork_holds_lock = false; }

}  // namespace verbena::client
