#include "client/event_wait.h"

#include <poll.h>
#include <pthread.h>

#include <cerrno>
#include <ctime>
#include <mutex>
#include <new>

#include "c_api/call.h"
#include "os/adaptive_spin.h"
#include "os/clock.h"
#include "os/fd.h"
#include "os/signal_block.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

using c_api::NoCancellation;

// A thread counts as polling if it finds no event this many times within PollPolicy::kCheckEvery.
// A lower number would be too low, because a thread that sleeps until an event also polls once more
// before each sleep.
constexpr std::uint32_t kPollsBusy = 16;
// A thread that polls sleeps for at most this time if the agent may need its processor to answer.
// A yield would not help, because the scheduler first divides a processor among sessions, and the
// agent has its own session.
constexpr timespec kAnswerWait{.tv_sec = 0, .tv_nsec = 50'000};
// A thread that polls receives the agent's messages at most once in this time.
constexpr Duration kListenEvery = std::chrono::microseconds(5);

// Records how this thread has polled and waited recently.
struct Recent {
  std::uint32_t polls = 0;  // consecutive polls that found no event
  Time polls_since{};
  Time listened_at{};
  os::AdaptiveSpin spin{std::chrono::microseconds(400)};
};
constinit thread_local Recent recent;

// Yields the processor.  Returns false if other threads compute on it.
bool yield_processor(Time now) {
  os::yield_processor();
  return recent.spin.yielded(os::now() - now);
}

// Sleeps until the agent has sent a message, for kAnswerWait at most.
void await_agent(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  (void)::ppoll(&one, 1, &kAnswerWait, nullptr);
}

}  // namespace

int EventWait::next(CmChannel& channel, process::CmNotice& notice) {
  ::pthread_testcancel();
  AgentLink::set_will_take_more_events(false);
  const int error = channel.try_next(notice) ? 0 : wait(channel, notice);
  if (error == 0 && recent.polls > 0) {
    recent.polls = 0;
    recent.spin.polled();
  }
  AgentLink::set_will_take_more_events(error == 0 && channel.size() > 0);
  return error;
}

void EventWait::note_other_wait() {
  AgentLink::set_will_take_more_events(false);
  send_delayed_messages();
}

int EventWait::wait(CmChannel& channel, process::CmNotice& notice) {
  send_delayed_messages();
  const Time began = os::now();
  if (recent.spin.should_spin() && os::is_blocking(channel.fd())) {
    if (const auto found = spin(channel, notice, began)) return *found;
  }
  const int error = os::is_blocking(channel.fd()) ? blocked_.next(channel, notice) : EAGAIN;
  if (error == 0) {
    recent.spin.record_sleep(os::now() - began);
    return 0;
  }
  if (error != EAGAIN || !is_time_to_listen(began)) return error;
  if (const auto agent_fd = listen()) {
    if (driver_.program_polls()) {
      os::yield_processor();  // does not sleep, because completions must not wait for the agent
    } else {
      await_agent(*agent_fd);
      (void)listen();
    }
  }
  return channel.try_next(notice) ? 0 : EAGAIN;
}

// Counts a poll.  Returns true if this thread polls often, or threads of the program listen
// already, and this thread has not listened to the agent for a while.
bool EventWait::is_time_to_listen(Time now) const {
  if (recent.polls++ == 0) recent.polls_since = now;
  if (!agent_.program_listens()) {
    if (recent.polls < kPollsBusy) return false;
    if (now - recent.polls_since >= PollPolicy::kCheckEvery) {
      recent.polls = 0;
      return false;
    }
  }
  return now - recent.listened_at >= kListenEvery;
}

// Receives the agent's messages for a moment.  Returns 0 if an event came, or EINTR where read(2)
// would.  Returns none when the thread should sleep.
std::optional<int> EventWait::spin(CmChannel& channel, process::CmNotice& notice, Time began) {
  os::SignalBlock signals;  // keeps signals pending, so that would_end_wait() sees them
  for (Time now = began; now - began < recent.spin.spin_time(); now = os::now()) {
    (void)listen();
    if (channel.try_next(notice)) {
      recent.spin.record_successful_spin();
      signals.release();
      return 0;
    }
    if (!yield_processor(os::now())) break;
  }
  recent.spin.record_failed_spin();
  {
    const Driving lock(driver_);
    agent_.let_progress_thread_listen();
  }
  std::optional<int> result;
  if (channel.try_next(notice)) {
    result = 0;
  } else if (signals.would_end_wait()) {
    result = EINTR;
  }
  signals.release();
  return result;
}

// Receives the agent's messages.  If the agent may need this processor to answer, returns the
// descriptor of the connection.
std::optional<int> EventWait::listen() {
  const NoCancellation no_cancellation;
  const Driving lock(driver_, std::try_to_lock);
  agent_.note_message();  // makes the thread that drives receive messages
  if (!lock) return std::nullopt;
  driver_.send_deferred();
  const Time now = recent.listened_at = os::now();
  try {
    (void)driver_.work().receive(now, std::nullopt);
  } catch (const std::bad_alloc&) {
    driver_.wake();
  }
  agent_.program_listened(now);
  driver_.try_flush();
  return agent_.may_be_answering(now) ? std::optional(agent_.fd()) : std::nullopt;
}

void EventWait::send_delayed_messages() {
  if (!agent_.has_delayed_messages()) return;
  const NoCancellation no_cancellation;
  const Driving lock(driver_);
  driver_.try_flush();
}

}  // namespace verbena::client
