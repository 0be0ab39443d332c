#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "client/watches.h"
#include "os/daemon.h"
#include "os/fd.h"
#include "os/unix_channel.h"
#include "process/process.h"

namespace verbena::client {

// Owns a program's connection with its agent.  Sends the messages of the Process, receives the
// messages of the agent, and decides which thread listens (waits for the agent's messages).
//
// Usually the progress thread listens.  When a message comes, the progress thread calls
// note_message(), and the next thread that drives receives the message.  While threads of the
// program poll for events of the RDMA CM, those threads listen, and messages do not wake the
// progress thread.  The progress thread checks every PollPolicy::kCheckEvery whether those threads
// still poll.
//
// Messages that a thread sends between two events travel in one datagram.  If a thread took an
// event while more events were waiting, it will soon take another event.  So its messages are
// delayed until then.  If the thread takes no event within kCheckEvery, the progress thread sends
// the messages.
//
// The drive lock guards this object, except for the functions marked "any thread".
class AgentLink {
 public:
  // REQUIRES: both outlive this object.
  AgentLink(process::Process& process, Watches& watches);

  // ---- the connection ----
  bool is_open() const { return static_cast<bool>(channel_); }
  int fd() const { return channel_.fd(); }
  // Takes over a connection.  REQUIRES: no connection is open.  kSystem: the progress thread cannot
  // wait for its messages.
  Result<void> open(os::UnixChannel channel, os::Daemon daemon);
  void close();
  // Ends the connection, so that all threads that wait for messages get an end of file.
  void shut_down() { channel_.shut_down(); }
  // Closes the descriptors in a forked child.
  void abandon();
  // Collects the reaper processes (os::Daemon) of agents that this program started and that have
  // ended.  Otherwise the reapers would remain zombies.
  void reap_ended_agents();

  // ---- sending ----
  // Sends all messages, or delays them as described above.  `tables` are the descriptors that
  // ipc::Lease carries.
  void flush(std::span<const int> tables);
  // Returns false if messages wait because the agent's socket is full.
  bool all_sent() const { return !socket_full_; }
  // Waits until the agent's socket has space for a message.
  void wait_until_writable(Time deadline);

  // ---- receiving ----
  struct Datagram {
    std::span<const std::byte> messages{};  // valid until the next call
    std::vector<os::Fd> fds{};
    bool complete = true;  // false: descriptors of the datagram were lost
  };
  // Returns the next datagram, or none if no datagram has come.  An error means that the agent has
  // ended.
  Result<std::optional<Datagram>> receive();
  // Notes that a message may have arrived.  Any thread.
  void note_message() { message_noted_.store(true); }
  // Returns true if note_message() has noted a message, and removes the note.  Any thread.
  bool take_message_note() { return message_noted_.load() && message_noted_.exchange(false); }
  // Returns true if it is time to receive messages.  Call this function at the end of each command.
  // A program that makes many commands without a wait must still receive messages, even if the
  // progress thread does not get the lock.
  bool is_time_to_listen();

  // ---- who listens ----
  // Makes the progress thread listen while this object exists, because a call waits for an answer.
  class AwaitedAnswer {
   public:
    explicit AwaitedAnswer(AgentLink& link);
    AwaitedAnswer(AwaitedAnswer&& other) noexcept : link_(std::exchange(other.link_, nullptr)) {}
    AwaitedAnswer& operator=(AwaitedAnswer&& other) noexcept {
      std::swap(link_, other.link_);
      return *this;
    }
    ~AwaitedAnswer();

   private:
    AgentLink* link_;
  };
  // Notes that a thread that polls for events has received the agent's messages.
  void program_listened(Time now);
  // Makes the progress thread listen again.
  void let_progress_thread_listen();
  // Implements Driver::Work::delegate_messages().  Any thread.
  bool delegate_messages() {
    // Stores messages_delegated_ before it reads answers_awaited_, so that a call that begins later
    // sees the new value.
    messages_delegated_.store(true);
    return answers_awaited_.load() == 0 || !messages_delegated_.exchange(false);
  }
  // Returns true if threads of the program listen.  Any thread.
  bool program_listens() const { return program_listens_.load(); }
  // Returns true if the progress thread has something to receive, to send or to check even while
  // the program polls.  Any thread.
  bool needs_progress_thread() const {
    return message_noted_.load() || has_delayed_messages_.load() || program_listens_.load();
  }
  // Returns true if messages are delayed.  Any thread.
  bool has_delayed_messages() const { return has_delayed_messages_.load(); }
  // Returns true if the agent got a message a moment ago, and so may need this processor to answer.
  bool may_be_answering(Time now) const;

  // The progress thread calls these two functions at the beginning and at the end of an iteration.
  // end_iteration() returns true if the thread needs its next iteration within kCheckEvery.  Set
  // `has_new_events` if events were delivered since the last iteration.
  void begin_iteration();
  bool end_iteration(bool has_new_events, Time now);

  // Notes whether this thread will soon take another event, because the thread took an event while
  // more events were waiting.
  static void set_will_take_more_events(bool will_take_more_events) {
    will_take_more_events_ = will_take_more_events;
  }

 private:
  bool may_delay_messages() const;
  void send_all(std::span<const int> tables);
  void update_watch();

  process::Process& process_;
  Watches& watches_;
  os::UnixChannel channel_{};
  std::vector<os::Daemon> daemons_{};  // agents that this program has started
  std::vector<std::byte> buffer_;
  // Holds the message for which the socket had no space.
  std::optional<process::Process::ToAgent> unsent_{};
  bool socket_full_ = false;
  std::uint32_t commands_ = 0;  // commands since messages were last received
  std::atomic<std::uint32_t> answers_awaited_{0};
  Time last_sent_at_{};  // when the agent last got a message; 0: the agent has answered
  bool delayed_since_iteration_ = false;  // messages were delayed since the last iteration
  bool next_iteration_is_soon_ = false;   // the next iteration begins within kCheckEvery
  std::uint32_t times_listened_ = 0;      // calls of program_listened() since the last check
  std::uint32_t recent_listening_ = 0;    // sums times_listened_ and halves the sum at each check
  Time program_listens_since_{};
  std::atomic<bool> message_noted_{true};
  std::atomic<bool> has_delayed_messages_{false};
  std::atomic<bool> program_listens_{false};
  std::atomic<bool> messages_delegated_{false};  // the progress thread does not wait for messages
  static constinit thread_local bool will_take_more_events_;
};

}  // namespace verbena::client
