#include "client/driver.h"

#include <algorithm>
#include <new>
#include <utility>

#include "os/clock.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

// Limits the time that a fork waits for the thread that drives.  The forking thread may be that
// thread itself, in a signal handler that interrupted it, and then no wait would end.
constexpr Duration kForkWaitMax = std::chrono::seconds(1);

// A program that polls comes back within a few microseconds.  If it does not, the progress thread
// sends its packets.
constexpr Duration kDeferralMax = std::chrono::microseconds(50);

// Is true while this thread holds the drive lock for a fork.
thread_local bool held_for_fork = false;

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
  if (!turn.left_to_program || expired || work_.needs_turn()) {
    const Driving lock(*this);
    in_turn_ = true;
    if (expired && is_deferred()) {
      policy_.deferral_expired();
      deferrals_.fetch_add(1);  // so that flush() does not count it as sent in time
      try_flush();
    }
    send_deferred();  // before a message of the agent or a timer ends a connection
    const Time now = os::now();
    work_.begin_turn();
    // A timer that is due may wait for a packet that has already come, so look at the sockets too.
    const bool looks = policy_.should_look() || work_.deadline() <= now;
    const bool found =
        work_.receive(now, looks ? std::optional(os::UdpReceiver::Look::kAll) : std::nullopt);
    policy_.looked(turn, found, now);
    flush();
    const bool looks_soon = work_.end_turn(os::now());
    const Time due = work_.deadline();
    if (!turn.left_to_program) {
      deadline = looks_soon ? std::min(deadline, due) : due;
      if (!work_.park()) {
        policy_.packets_came();
        deadline = now;
      }
    }
    sleeps_until_ = std::min(deadline, due);
  }
  work_.after_turn();
  policy_.end_turn(turn);
  sleep(turn, deadline);
}

void Driver::sleep(const PollPolicy::Turn& turn, Time deadline) {
  std::span<const Watches::Kind> ready;
  if (turn.left_to_program) {
    ready = watches_.wait(Watches::For::kAllButSockets, deadline);
  } else {
    const auto wait = [&](Time until) {
      ready = watches_.wait(Watches::For::kAll, until);
      const bool packets = std::ranges::any_of(ready, [](Watches::Kind kind) {
        return kind == Watches::Kind::kSockets || kind == Watches::Kind::kLanes;
      });
      return std::pair(ready.size(), packets);
    };
    (void)spin_.wait(deadline, os::now, os::let_others_run, wait,
                     [this] { return policy_.will_leave(os::now()); });
  }
  serve(ready);
}

void Driver::serve(std::span<const Watches::Kind> ready) {
  for (const Watches::Kind kind : ready) {
    if (kind == Watches::Kind::kSockets || kind == Watches::Kind::kLanes) {
      policy_.packets_came();
    } else if (kind != Watches::Kind::kWake) {
      work_.ready(kind);
    }
  }
}

void Driver::release() VB_NO_THREAD_SAFETY_ANALYSIS {
  // The turn that ends here has asked for room itself.  Nobody has done so for posts of other
  // threads that are sent below.
  bool asked_for_room = std::exchange(in_turn_, false);
  for (;;) {
    // A new timer may be due before the progress thread would look.
    if (const Time due = work_.deadline(); due < sleeps_until_) {
      sleeps_until_ = due;
      wake();
    }
    // The progress thread asks the peers to wake it when there is room.
    if (!std::exchange(asked_for_room, false) && work_.waits_for_room() &&
        !policy_.is_left_to_program()) {
      wake();
    }
    const auto left_posts = std::exchange(left_posts_, std::nullopt);
    mutex_.unlock();
    const bool only_left_posts = handover_.fetch_add(1) == left_posts;
    if (!work_.has_posts() || only_left_posts || !mutex_.try_lock()) return;
    try_flush();
  }
}

void Driver::kick() {
  const std::uint32_t kick = handover_.fetch_add(1) + 1;
  const Driving lock(*this, std::try_to_lock);
  if (!lock) return;
  if (work_.posts_can_wait() && policy_.may_defer()) {
    defer();
    left_posts_ = kick;
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
      found = work_.receive(now, os::UdpReceiver::Look::kLikely);
      if (found && policy_.may_defer()) {
        work_.deliver(now);
        defer();
      } else if (work_.needs_flush() || work_.has_posts()) {
        flush();
      }
    } catch (const std::bad_alloc&) {
      wake();
    }
  }
  if (found) policy_.took_packets();
  if (policy_.should_yield(found)) os::let_others_run();
}

void Driver::armed() {
  if (policy_.armed()) wake();
}

void Driver::try_flush() {
  try {
    flush();
  } catch (const std::bad_alloc&) {
    wake();
  }
}

void Driver::flush() {
  if (is_deferred()) {
    deferrals_.fetch_add(1);
    policy_.deferred_was_sent();
  }
  work_.flush();
}

void Driver::before_fork() { held_for_fork = mutex_.try_lock_for(kForkWaitMax); }

void Driver::after_fork_in_parent() {
  if (!std::exchange(held_for_fork, false)) return;
  mutex_.unlock();
  wake();  // the progress thread sends posts that came meanwhile
}

void Driver::after_fork_in_child() { held_for_fork = false; }

}  // namespace verbena::client
