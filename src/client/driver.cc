#include "client/driver.h"

#include <algorithm>
#include <new>
#include <utility>

#include "os/clock.h"
#include "os/shared_processor.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

// Limits the time that a fork waits for the thread that drives.  The forking thread may be that
// thread itself, in a signal handler that interrupted it, and then no wait would end.
constexpr Duration kForkWaitMax = std::chrono::seconds(1);

// A program that polls comes back within a few microseconds.  If it does not, the progress thread
// sends its packets.
constexpr Duration kDeferralMax = std::chrono::microseconds(50);

// A program with signal handlers may lose the thread that waits for packets: a handler jumps out of
// its wait.  The progress thread checks this often whether packets are left.
constexpr Duration kReceiverCheckEvery = std::chrono::milliseconds(100);

// Lets other threads run.  If another thread always wants this processor, sleeps for a moment, so
// that the scheduler looks for a free processor.
void let_others_run() {
  constinit thread_local os::SharedProcessor shared;
  const Time before = os::now();
  os::let_others_run();
  if (shared.yielded(before, os::now()) && !os::has_one_processor()) os::sleep_for_a_moment();
}

// This is true while this thread holds the drive lock for a fork.
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
  // No event tells when there is memory again.
  constexpr auto kPause = std::chrono::milliseconds(10);
  while (!stop_.load()) {
    try {
      turn();
    } catch (const std::bad_alloc&) {
      // The next turn finishes the work of this one.
      std::this_thread::sleep_for(kPause);
    }
  }
}

void Driver::turn() {
  evict_lost_receiver(os::now());
  const PollPolicy::Turn turn = policy_.begin_turn(os::now());
  bool expired = false;
  if (const std::uint32_t deferrals = deferrals_.load(); turn.left_to_program && is_deferred()) {
    const auto ready = watches_.wait(Watches::For::kAllButSockets, os::now() + kDeferralMax);
    if (!ready.empty()) {
      policy_.end_turn(turn);
      return serve(ready);
    }
    expired = deferrals_.load() == deferrals;
  }
  Time deadline = os::now() + PollPolicy::kCheckEvery;
  if (!turn.left_to_program || turn.lent || expired || work_.needs_turn()) {
    const Driving lock(*this);
    deadline = take_turn(turn, expired);
    sleeps_until_ = deadline;
  }
  work_.after_turn();
  policy_.end_turn(turn);
  sleep(turn, deadline);
}

// Does the progress thread's work, and returns the time of its next turn.
Time Driver::take_turn(const PollPolicy::Turn& turn, bool expired) {
  const Time turn_start = os::now();
  const bool work_is_left = work_is_left_.exchange(false);
  bool next_turn_is_soon = turn.checks_again;
  if (!turn.lent || expired || work_is_left || work_.needs_turn() ||
      work_.deadline() <= turn_start) {
    parks_ = !turn.left_to_program;
    if (expired && is_deferred()) {
      policy_.deferral_expired();
      deferrals_.fetch_add(1);  // so that flush() does not count it as sent in time
      try_flush();
    }
    send_deferred();  // before a message of the agent or a timer ends a connection
    const Time now = os::now();
    work_.begin_turn();
    // Another thread may have taken the role meanwhile.  It may sleep now, and then needs the lanes
    // parked.
    if (!turn.left_to_program && !policy_.is_lent()) unpark();
    // A timer that is due may wait for a packet that has already come, so poll the sockets too.
    const bool polls_sockets =
        (!turn.lent && policy_.should_poll_sockets()) || work_.deadline() <= now;
    const bool found = work_.receive(
        now, polls_sockets ? std::optional(os::UdpReceiver::Poll::kAll) : std::nullopt);
    policy_.sockets_polled(turn, found, now);
    flush();
  }
  next_turn_is_soon = work_.end_turn(os::now()) || next_turn_is_soon;
  const Time due = work_.deadline();
  if (next_turn_is_soon) return std::min(os::now() + PollPolicy::kCheckEvery, due);
  return turn.lent && receiver_may_be_lost_.load() ? std::min(next_receiver_check_, due) : due;
}

void Driver::sleep(const PollPolicy::Turn& turn, Time deadline) {
  std::span<const Watches::Kind> ready;
  const auto count = [&] {
    const bool woken = std::ranges::any_of(
        ready, [](Watches::Kind kind) { return kind != Watches::Kind::kCheck; });
    if (woken) progress_wakes_.fetch_add(1, std::memory_order_relaxed);
  };
  if (turn.left_to_program) {
    const bool delegates = turn.lent && work_.delegate_messages();
    ready = watches_.wait(delegates ? Watches::For::kRest : Watches::For::kAllButSockets, deadline);
    count();
  } else {
    const auto wait = [&](Time until) {
      const bool sleeps = until > Time{};
      const bool in_lanes = sleeps ? !park_for_progress_thread() : poll_lanes();
      ready = watches_.wait(Watches::For::kAll, in_lanes ? Time{} : until);
      if (sleeps) count();
      const bool packets =
          in_lanes || std::ranges::any_of(ready, [](Watches::Kind kind) {
            return kind == Watches::Kind::kSockets || kind == Watches::Kind::kLanes;
          });
      return std::pair(ready.size() + (in_lanes ? 1 : 0), packets);
    };
    (void)spin_.wait(deadline, os::now, os::let_others_run, wait,
                     [this] { return policy_.will_leave_sockets(os::now()); });
  }
  serve(ready);
}

void Driver::serve(std::span<const Watches::Kind> ready) {
  for (const Watches::Kind kind : ready) {
    if (kind == Watches::Kind::kSockets || kind == Watches::Kind::kLanes) {
      policy_.packets_came();
      if (kind != Watches::Kind::kLanes) continue;
      const Driving lock(*this);
      parked_ = true;  // makes unpark() clear the doorbell, even if it rang during a spin
    } else if (kind != Watches::Kind::kWake) {
      work_.ready(kind);
    }
  }
}

void Driver::release() VB_NO_THREAD_SAFETY_ANALYSIS {
  // A thread that parks the lanes before it sleeps also asks the peers for room.  It does not do so
  // for posts of other threads that try_flush() sends below, so later rounds wake a thread for it.
  bool asks_for_room = std::exchange(parks_, false);
  for (;;) {
    // A new timer may be due before the progress thread would wake up.
    if (const Time due = work_.deadline(); due < sleeps_until_) {
      sleeps_until_ = due;
      wake();
    }
    // The thread that sleeps on the lanes asks the peers to wake it when there is room.
    if (!std::exchange(asks_for_room, false) && work_.waits_for_room() &&
        !policy_.is_left_to_polls()) {
      watches_.wake_receiver();
    }
    if (work_.take_unfinished()) leave_work();
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
  {
    const Driving lock(*this, std::try_to_lock);
    if (!lock) return;
    try {
      if (is_deferred()) flush();
      const Time now = os::now();
      found = work_.receive(now, os::UdpReceiver::Poll::kLikely);
      if (found && policy_.may_defer()) {
        work_.deliver(now);
        defer();
      } else if (work_.needs_flush() || work_.has_posts()) {
        flush();
      }
    } catch (const std::bad_alloc&) {
      leave_work();
    }
  }
  if (found) policy_.took_packets();
  if (policy_.should_yield(found)) let_others_run();
}

void Driver::cq_armed() {
  if (policy_.cq_armed()) wake();
}

void Driver::try_flush() {
  try {
    flush();
  } catch (const std::bad_alloc&) {
    leave_work();
  }
}

// Lets the progress thread finish the work, even if another thread has the role of the receiver.
void Driver::leave_work() {
  work_is_left_.store(true);
  wake();
}

// ---- who waits for packets

ReceiverRole::Wait Driver::take_role(ReceiverRole::For events) {
  const ReceiverRole::TakenRole role = policy_.take_role(events, os::now());
  if (role.from_progress_thread) wake();
  if (role.from_waiter) watches_.wake_receiver();
  return role.wait;
}

void Driver::leave_role(ReceiverRole::Wait wait) {
  if (policy_.role().another_waits()) {
    give_role_back(wait);
  } else if (policy_.role().leave(wait)) {
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

// Takes the role away from a waiter that has left packets for a whole interval of checks.
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
  if (policy_.is_lent()) return true;  // a wake-up follows, and another thread takes the lanes
  parks_ = true;
  if (park()) return true;
  policy_.packets_came();
  return false;
}

// Polls the lanes while the progress thread spins, so that no peer must wake it.  Returns true if
// packets came.
bool Driver::poll_lanes() {
  const Driving lock(*this, std::try_to_lock);
  if (!lock || policy_.is_lent() || !work_.has_lanes()) return false;
  parks_ = true;
  try {
    const bool found = work_.receive(os::now(), os::UdpReceiver::Poll::kLikely);
    if (work_.needs_flush()) flush();
    return found;
  } catch (const std::bad_alloc&) {
    leave_work();
    return false;
  }
}

std::optional<Watches::ForReceiver> Driver::prepare_sleep(ReceiverRole::Wait wait) {
  const Driving lock(*this);
  if (!policy_.role().has(wait)) return {};
  parks_ = true;
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
  wake();  // the progress thread sends posts that came meanwhile
}

void Driver::after_fork_in_child() { fork_holds_lock = false; }

}  // namespace verbena::client
