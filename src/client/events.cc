// How a thread takes events of the RDMA CM, and what it says to the agent between them.

#include <pthread.h>

#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include "client/client.h"
#include "os/clock.h"
#include "os/fd.h"
#include "os/signal_hold.h"
#include "os/thread.h"
#include "os/wait_habit.h"

namespace verbena::client {
namespace {

// So many polls in vain, one after the other within Client::kLook, are a program that polls; fewer
// are one that looks once more before it sleeps.
constexpr std::uint32_t kPollsBusy = 16;
// While it goes on, a poll hears the agent no more often than this, and the progress thread is not
// told as long as so many did of late, those before its last look counted half.
constexpr Duration kHearEvery = std::chrono::microseconds(5);
constexpr std::uint32_t kHeardBusy = 4;

struct Habit {
  std::uint32_t polls = 0;  // in vain, one after the other,
  Time since{};             // and the first of them
  Time heard{};
  os::WaitHabit waits{std::chrono::microseconds(400)};
};
constinit thread_local Habit habit;

// False: others compute here.
bool let_others_run(Time now) {
  os::let_others_run();
  return habit.waits.others_ran(os::now() - now);
}

}  // namespace

constinit thread_local bool Client::comes_back_ = false;

int Client::next_event(CmChannel& channel, process::CmNotice& notice) {
  ::pthread_testcancel();
  comes_back_ = false;
  const int error = channel.try_next(notice) ? 0 : wait_for_event(channel, notice);
  if (error == 0 && habit.polls > 0) {
    habit.polls = 0;
    habit.waits.did_not_wait();
  }
  comes_back_ = error == 0 && channel.size() > 0;
  return error;
}

void Client::waits_elsewhere() {
  comes_back_ = false;
  send_held_messages();
}

int Client::wait_for_event(CmChannel& channel, process::CmNotice& notice) {
  send_held_messages();
  const Time began = os::now();
  if (habit.waits.looks_on() && os::is_blocking(channel.fd())) {
    if (const auto found = look_for_event(channel, notice, began)) return *found;
  }
  const int error = os::is_blocking(channel.fd()) ? channel.next(notice) : EAGAIN;
  if (error == 0) {
    habit.waits.slept(os::now() - began);
    return 0;
  }
  if (error != EAGAIN || !polls_on(began)) return error;
  if (!hear_agent() && !habit.waits.others_compute()) let_others_run(os::now());
  return channel.try_next(notice) ? 0 : EAGAIN;
}

// True if the thread polls and it is time to hear the agent once more.
bool Client::polls_on(Time now) {
  if (habit.polls++ == 0) habit.since = now;
  if (!others_hear_.load()) {
    if (habit.polls < kPollsBusy) return false;
    if (now - habit.since >= kLook) {
      habit.polls = 0;
      return false;
    }
  }
  return now - habit.heard >= kHearEvery;
}

// 0, or EINTR as read(2) would have it; nothing: it is time to sleep.
std::optional<int> Client::look_for_event(CmChannel& channel, process::CmNotice& notice,
                                          Time began) {
  os::SignalHold hold;  // a handler that is to end a wait finds one
  for (Time now = began; now - began < habit.waits.moment(); now = os::now()) {
    (void)hear_agent();
    if (channel.try_next(notice)) {
      habit.waits.found_something();
      hold.release();
      return 0;
    }
    if (!let_others_run(os::now())) break;
  }
  habit.waits.looked_in_vain();
  Driving lock(drive_);
  listen_again();
  let_go(lock);
  std::optional<int> result;
  if (channel.try_next(notice)) {
    result = 0;
  } else if (hold.ends_wait()) {
    result = EINTR;
  }
  hold.release();
  return result;
}

// False: the agent may want this processor, to answer.
bool Client::hear_agent() {
  const NoCancellation whole_call;
  Driving lock(drive_, std::try_to_lock);
  if (!lock) {
    agent_spoke_.store(true);  // it may have: whoever drives looks
    return true;
  }
  ++event_hearings_;
  const Time now = habit.heard = os::now();
  try {
    receive_messages(now);
  } catch (const std::bad_alloc&) {
    wake_.wake();
  }
  const bool answers_awaited = calls_waiting_ != 0 || !held_.empty();
  if (agent_ && !answers_awaited && !others_hear_.exchange(true)) {
    others_hear_since_ = now;
    update_watch();
    wake_.wake();  // to look whether this goes on
  }
  try_flush();
  const bool awaited = now - asked_ < kLook;
  let_go(lock);
  return !awaited;
}

// The progress thread's word for it.  REQUIRES: the drive lock.
void Client::see_who_hears() {
  if (!others_hear_.load() || os::now() - others_hear_since_ < kLook) return;
  const std::uint32_t heard = std::exchange(event_hearings_, 0);
  hearings_before_ = hearings_before_ / 2 + heard;
  if (heard == 0 || hearings_before_ < kHeardBusy) listen_again();
}

// The progress thread is told of messages again.  REQUIRES: the drive lock.
void Client::listen_again() {
  hearings_before_ = kHeardBusy;  // for the next time
  if (others_hear_.exchange(false)) update_watch();
}

// That the agent has read something is of interest while its socket is full.  That it is gone is
// always heard.
void Client::update_watch() {
  for (os::Poller* poller : {&busy_, &quiet_}) {
    (void)poller->change(agent_.fd(), kAgentToken, !others_hear_.load(), awaits_room_).has_value();
  }
}

// Not so many that the agent has nothing to do meanwhile.
bool Client::may_hold_messages() const {
  constexpr std::size_t kHeldMax = 16;
  const std::size_t count = process_.messages();
  return comes_back_ && looks_soon_ && !unsent_ && count > 0 && count < kHeldMax &&
         process_.messages_may_wait();
}

void Client::send_held_messages() {
  if (!holds_messages_.load()) return;
  const NoCancellation whole_call;
  Driving lock(drive_);
  try_flush();
  let_go(lock);
}

}  // namespace verbena::client
