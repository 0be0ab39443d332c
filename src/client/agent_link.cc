#include "client/agent_link.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "client/poll_policy.h"
#include "os/clock.h"
#include "os/process.h"

namespace verbena::client {
namespace {

// The program's threads remain the listeners as long as recent_listening_ is at least this number.
constexpr std::uint32_t kListensOften = 4;

}  // namespace

constinit thread_local bool AgentLink::will_take_more_events_ = false;

AgentLink::AgentLink(process::Process& process, Watches& watches)
    : process_(process), watches_(watches), buffer_(os::kMessageBytesMax) {}

Result<void> AgentLink::open(os::UnixChannel channel, os::Daemon daemon) {
  channel_ = std::move(channel);
  if (daemon.reaper_pidfd) {
    daemons_.push_back(std::move(daemon));
    VB_TRY_VOID(watches_.add_reaper(daemons_.back().reaper_pidfd.get()));
  }
  return watches_.add_agent(channel_.fd());
}

void AgentLink::close() {
  if (channel_) {
    watches_.remove_agent(channel_.fd());
    channel_.close();
  }
  unsent_.reset();
  socket_full_ = false;
  program_listens_.store(false);
}

void AgentLink::abandon() {
  channel_.close();
  for (os::Daemon& daemon : daemons_) daemon.reaper_pidfd.reset();
}

void AgentLink::reap_ended_agents() {
  std::erase_if(daemons_, [this](os::Daemon& daemon) {
    if (!os::has_ended(daemon.reaper_pidfd.get())) return false;
    watches_.remove_reaper(daemon.reaper_pidfd.get());
    (void)os::collect_reaper(daemon);
    return true;
  });
}

// ---- sending

void AgentLink::flush(std::span<const int> tables) {
  const bool delays = may_delay_messages();
  delayed_since_iteration_ |= delays;
  has_delayed_messages_.store(delays);
  if (!delays) send_all(tables);
}

// Returns true if the messages may be delayed.  Limits the number of delayed messages, so that the
// agent is not idle for long.
bool AgentLink::may_delay_messages() const {
  constexpr std::size_t kDelayedMessagesMax = 16;
  const std::size_t count = process_.messages();
  return will_take_more_events_ && next_iteration_is_soon_ && !unsent_ && count > 0 &&
         count < kDelayedMessagesMax && process_.messages_may_wait();
}

void AgentLink::send_all(std::span<const int> tables) {
  while (channel_) {
    if (!unsent_) unsent_ = process_.poll_message();
    if (!unsent_) return;
    // Appends all messages that may travel in the same datagram.
    while (process_.poll_another(*unsent_)) {
    }
    std::vector<int> fds;
    os::Fd pidfd;
    if (unsent_->qp_table) fds.assign(tables.begin(), tables.end());
    if (unsent_->hello) {
      if (auto own = os::open_pidfd(::getpid())) {
        pidfd = *std::move(own);
        fds.push_back(pidfd.get());
      }
    }
    const auto sent = channel_.send(unsent_->message, fds);
    const bool full = !sent && os::would_block(sent.error());
    if (full != std::exchange(socket_full_, full)) update_watch();
    if (full) return;
    last_sent_at_ = os::now();
    const auto message = std::exchange(unsent_, std::nullopt);
    if (!sent && sent.error().detail == ETOOMANYREFS) {
      (void)process_.on_message_refused(*message).has_value();  // fails the request of the message
    } else if (!sent) {
      shut_down();  // the agent has ended, or the connection is unusable
      return;
    }
  }
}

void AgentLink::wait_until_writable(Time deadline) {
  // Ignores errors, because the next flush() reports them.
  (void)os::wait_for(channel_.fd(), POLLOUT, deadline).has_value();
}

// ---- receiving

Result<std::optional<AgentLink::Datagram>> AgentLink::receive() {
  if (!channel_) return std::nullopt;
  Datagram datagram;
  bool fds_lost = false;
  const auto size = channel_.receive(buffer_, datagram.fds, os::kNoWait, &fds_lost);
  if (!size) {
    if (os::would_block(size.error())) return std::nullopt;
    return std::unexpected(size.error());
  }
  if (*size == 0) return fail(Errc::kUnreachable, "the agent closed its connection");
  last_sent_at_ = {};
  datagram.messages = std::span<const std::byte>(buffer_).first(*size);
  datagram.complete = !fds_lost;
  return datagram;
}

bool AgentLink::is_time_to_listen() {
  constexpr std::uint32_t kCommandsMax = 64;
  if (!message_noted_.exchange(false) && ++commands_ < kCommandsMax) return false;
  commands_ = 0;
  return true;
}

// ---- who listens

AgentLink::AwaitedAnswer::AwaitedAnswer(AgentLink& link) : link_(&link) {
  ++link.answers_awaited_;
  link.let_progress_thread_listen();
  if (link.messages_delegated_.exchange(false)) link.watches_.wake();
}

AgentLink::AwaitedAnswer::~AwaitedAnswer() {
  if (link_ != nullptr) --link_->answers_awaited_;
}

void AgentLink::program_listened(Time now) {
  ++times_listened_;
  if (!channel_ || answers_awaited_ != 0 || program_listens_.exchange(true)) return;
  program_listens_since_ = now;
  update_watch();
  watches_.wake();  // the progress thread checks from now on whether the program still listens
}

void AgentLink::let_progress_thread_listen() {
  // Begins with a high sum, so that the first check does not stop a program that listens again.
  recent_listening_ = kListensOften;
  if (program_listens_.exchange(false)) update_watch();
}

bool AgentLink::may_be_answering(Time now) const {
  return now - last_sent_at_ < PollPolicy::kCheckEvery;
}

void AgentLink::begin_iteration() {
  if (program_listens_.load()) note_message();
}

bool AgentLink::end_iteration(bool has_new_events, Time now) {
  if (program_listens_.load() && now - program_listens_since_ >= PollPolicy::kCheckEvery) {
    const std::uint32_t new_listening = std::exchange(times_listened_, 0);
    recent_listening_ = recent_listening_ / 2 + new_listening;
    if (new_listening == 0 || recent_listening_ < kListensOften) let_progress_thread_listen();
  }
  const bool delayed = std::exchange(delayed_since_iteration_, false);
  next_iteration_is_soon_ = has_new_events || delayed || program_listens_.load();
  return next_iteration_is_soon_;
}

void AgentLink::update_watch() {
  watches_.change_agent(channel_.fd(), !program_listens_.load(), socket_full_);
}

}  // namespace verbena::client
