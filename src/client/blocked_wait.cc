#include "client/blocked_wait.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <ctime>
#include <optional>
#include <tuple>
#include <utility>

#include "c_api/call.h"
#include "client/spin_then_sleep.h"
#include "os/clock.h"
#include "os/fd.h"
#include "os/signal_block.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

using c_api::NoCancellation;
using Poll = os::UdpReceiver::Poll;

// A wait gives the role back after this many wake-ups that brought no event.  The limit for
// completions is larger, because one completion may need several packets.
constexpr int kUselessWakesMax = 64;
constexpr int kUselessWakesMaxForConnections = 8;
// A thread asks the kernel for its signal handlers and processors at most once in this time,
// because that takes some microseconds.  It asks earlier if a handler has interrupted its wait.
constexpr Duration kKernelCheckEvery = std::chrono::milliseconds(10);

// Records how this thread has waited recently.
struct RecentWaits {
  SpinThenSleep spin{};
  ReceiverRole::Wait wait = 0;  // the wait for which this thread has the role; 0: none
  Time kernel_checked_at{};
  os::Interruption handlers{};
  bool has_one_processor = false;
};
constinit thread_local RecentWaits recent_waits;

// Returns the effect of signals on a wait of this thread.  `mask` is the thread's signal mask.
os::Interruption interruption(const sigset_t& mask) {
  const Time now = os::now();
  if (now - recent_waits.kernel_checked_at >= kKernelCheckEvery) {
    recent_waits.handlers = os::handler_effect_on_read(mask);
    recent_waits.has_one_processor = os::has_one_processor();
    recent_waits.kernel_checked_at = now;
  }
  return recent_waits.handlers;
}

}  // namespace

// Takes the role of the receiver for one wait.  A thread that unwinds gives the role back, because
// it does not wait again.
class BlockedWait::Role {
 public:
  Role(Driver& driver, ReceiverRole::For events) : driver_(driver) {
    // A recorded wait has not ended normally: a signal handler has jumped out of that wait.
    if (recent_waits.wait != 0) driver_.end_wait_with_role(recent_waits.wait);
    recent_waits.wait = driver_.take_role(events);
  }
  Role(const Role&) = delete;
  Role& operator=(const Role&) = delete;
  ~Role() { give_back(); }

  ReceiverRole::Wait wait() const { return recent_waits.wait; }
  // Ends the wait of a thread that has its event.
  void end_wait() {
    if (recent_waits.wait != 0) driver_.end_wait_with_role(std::exchange(recent_waits.wait, 0));
  }
  void give_back() {
    if (recent_waits.wait == 0) return;
    const NoCancellation no_cancellation;
    driver_.give_role_back(std::exchange(recent_waits.wait, 0));
  }
  // Forgets the role without giving it back, because this process is a forked child.
  static void abandon() { recent_waits.wait = 0; }

 private:
  Driver& driver_;
};

// Counts a wait without the role while this object exists.
class BlockedWait::WithoutRole {
 public:
  explicit WithoutRole(Driver& driver) : driver_(driver) { driver_.begin_wait_without_role(); }
  WithoutRole(const WithoutRole&) = delete;
  WithoutRole& operator=(const WithoutRole&) = delete;
  ~WithoutRole() { driver_.end_wait_without_role(); }

 private:
  Driver& driver_;
};

// Waits for an event with the role of the receiver.
template <class Queue, class Entry>
class BlockedWait::WaitWithRole {
 public:
  WaitWithRole(BlockedWait& owner, Queue& channel, Entry& event, Role& role,
               const os::SignalBlock& signals)
      : owner_(owner), channel_(channel), event_(event), role_(role), signals_(signals) {}

  // Returns the result of next().  Returns none if the thread must wait without the role.
  std::optional<int> run(ReceiverRole::For events) {
    const bool completions = events == ReceiverRole::For::kCompletions;
    const int wakes_max = completions ? kUselessWakesMax : kUselessWakesMaxForConnections;
    for (int wakes = 0; wakes < wakes_max && !result_; ++wakes) {
      (void)receive(Poll::kAll);
      if (result_ || !has_role_) break;
      if (!completions || recent_waits.has_one_processor) {
        (void)sleep();
        continue;
      }
      const auto wait = [this](Time until) {
        const bool packets = until == Time{} ? receive(Poll::kLikely) : sleep();
        const bool ends = until != Time{} || result_ || !has_role_;
        return std::pair<std::size_t, bool>(ends ? 1 : 0, packets);
      };
      (void)recent_waits.spin.wait(kNever, os::now, os::yield_processor, wait,
                                   [] { return false; });
    }
    return result_;
  }

 private:
  // Returns true if packets came.
  bool receive(Poll poll_mode) {
    const NoCancellation no_cancellation;
    Driver::Received received;
    bool packets = false;
    do {
      channel_.will_receive();
      received = owner_.driver_.receive_for_event(
          role_.wait(), poll_mode, [this] { return channel_.take_received(event_); });
      // Another thread may have queued the event.  Or memory ran out during the delivery, and a
      // later delivery has queued the event.
      if (received.event || channel_.take_received(event_)) result_ = 0;
      packets = packets || received.packets;
      has_role_ = received.has_role;
    } while (received.more && !result_);
    return packets;
  }

  // Returns false if a handler or the channel's own descriptor ended the sleep.  Returns true if
  // packets or messages may have come.
  bool sleep() {
    std::optional<Watches::ForReceiver> descriptors;
    {
      const NoCancellation no_cancellation;
      descriptors = owner_.driver_.prepare_sleep(role_.wait());
    }
    if (!descriptors) return true;
    std::array<pollfd, std::tuple_size_v<Watches::ForReceiver> + 1> waits{};
    for (std::size_t i = 0; i < descriptors->size(); ++i) {
      waits[i] = {.fd = (*descriptors)[i], .events = POLLIN, .revents = 0};
    }
    waits.back() = {.fd = channel_.fd(), .events = POLLIN, .revents = 0};
    const int ready = ::ppoll(waits.data(), waits.size(), nullptr, &signals_.previous_mask());
    if (ready < 0 || run_pending_handlers()) {
      handle_interruption();
      return false;
    }
    owner_.driver_.count_receiver_wake();
    if (waits[Watches::kAgentForReceiver].revents != 0) owner_.driver_.note_agent_is_ready();
    return waits.back().revents == 0;
  }

  // Runs the handlers of signals that came together with the event that ended the sleep.  Returns
  // true if a handler has run.  A handler may jump out of the wait, so it must run before the event
  // is taken.  Otherwise the event would be lost.
  bool run_pending_handlers() {
    if (recent_waits.handlers == os::Interruption::kNone || !signals_.is_pending()) return false;
    constexpr timespec kNoWait{};
    return ::ppoll(nullptr, 0, &kNoWait, &signals_.previous_mask()) < 0;
  }

  // Decides whether the signal handler that has run ends the wait.
  void handle_interruption() {
    // The handler may have called fork(), and this process may be the child.
    if (owner_.fork_mark_.is_in_forked_child()) {
      Role::abandon();
      has_role_ = false;
      return;
    }
    const os::Interruption before = recent_waits.handlers;
    recent_waits.kernel_checked_at = {};
    const os::Interruption now = interruption(signals_.previous_mask());
    using os::Interruption;
    if (before == Interruption::kEnds || now == Interruption::kEnds || now == Interruption::kBoth) {
      result_ = EINTR;
    }
  }

  BlockedWait& owner_;
  Queue& channel_;
  Entry& event_;
  Role& role_;
  const os::SignalBlock& signals_;
  std::optional<int> result_{};
  bool has_role_ = true;
};

template <class Queue, class Entry>
int BlockedWait::next_of(Queue& queue, Entry& entry, ReceiverRole::For events) {
  ::pthread_testcancel();
  if (queue.try_next(entry)) return 0;
  if (!os::is_blocking(queue.fd()) || !queue.try_take_never_waits()) return queue.next(entry);
  std::optional<int> result;
  {
    os::SignalBlock signals;
    const os::Interruption handlers = interruption(signals.previous_mask());
    if (handlers != os::Interruption::kNone) driver_.expect_lost_receiver();
    if (handlers != os::Interruption::kBoth) {
      Role role(driver_, events);
      if (role.wait() != 0) {
        result = WaitWithRole<Queue, Entry>(*this, queue, entry, role, signals).run(events);
      }
      if (result) role.end_wait();
    }
    signals.release();
  }
  if (result) return *result;
  if (events == ReceiverRole::For::kConnections) return queue.next(entry);
  const WithoutRole wait_without_role(driver_);
  return queue.next(entry);
}

int BlockedWait::next(CompletionChannel& channel, CqEvent& event) {
  return next_of(channel, event, ReceiverRole::For::kCompletions);
}

int BlockedWait::next(CmChannel& channel, process::CmNotice& notice) {
  return next_of(channel, notice, ReceiverRole::For::kConnections);
}

}  // namespace verbena::client
