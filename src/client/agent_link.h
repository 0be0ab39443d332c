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

// Owns a program's connection with its agent.  It sends the messages of the Process, receives those
// of the agent, and decides which thread listens (waits for the agent's messages).
//
// Usually the progress thread waits for messages, and notes each for the next thread that drives
// (note_message()).  While threads of the program poll for events of the RDMA CM, they listen
// themselves, and messages do not wake the progress thread.  The progress thread checks every
// PollPolicy::kCheckEvery whether those threads still poll.
//
// Messages that a thread sends between two events travel together.  A thread that took an event
// while more events were waiting will take those too, so its messages are held until then.  If the
// thread takes no event within kCheckEvery, the progress thread sends the messages.
//
// The drive lock guards it, except for the functions marked "any thread".
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
  // Ends the connection: all threads that wait for messages get an end of file.
  void shut_down() { channel_.shut_down(); }
  // Closes the descriptors in a forked child.
  void abandon();
  // Reaps the reapers (os::Daemon) of ended agents that this program started, so that no zombie
  // stays.
  void reap_ended_agents();

  // ---- sending ----
  // Sends all messages, or holds them (see above).  `tables` are the descriptors of ipc::Lease.
  void flush(std::span<const int> tables);
  // Returns false if the agent's socket is full, and messages wait for room in it.
  bool all_sent() const { return !socket_full_; }
  void wait_for_room(Time deadline);

  // ---- receiving ----
  struct Datagram {
    std::span<const std::byte> messages{};  // valid until the next call
    std::vector<os::Fd> fds{};
    bool complete = true;  // false: descriptors of the datagram were lost
  };
  // Returns the next datagram, or nothing if none has come.  After an error the agent is gone.
  Result<std::optional<Datagram>> receive();
  // Notes that a message may be there.  Any thread.
  void note_message() { message_noted_.store(true); }
  // Returns true once for each note.  Any thread.
  bool take_message_note() { return message_noted_.load() && message_noted_.exchange(false); }
  // Returns true if it is time to receive.  Call it at the end of each command: a program that
  // makes many commands without waiting must still receive messages, even if the progress thread
  // does not get the lock.
  bool is_time_to_listen();

  // ---- who listens ----
  // Makes the progress thread listen during its lifetime, because a call waits for an answer.
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
  // Implements Driver::Work.  Any thread may call it.
  bool delegate_messages() {
    messages_delegated_.store(true);  // stored before answers_awaited_ is read: later calls see it
    return answers_awaited_.load() == 0 || !messages_delegated_.exchange(false);
  }
  // Returns true if threads of the program listen.  Any thread.
  bool program_listens() const { return program_listens_.load(); }
  // Returns true if the progress thread has something to send or to check although the program
  // polls.  Any thread.
  bool needs_turn() const {
    return message_noted_.load() || holds_messages_.load() || program_listens_.load();
  }
  bool holds_messages() const { return holds_messages_.load(); }  // any thread
  // Returns true if the agent got a message a moment ago and may need this processor to answer.
  bool may_be_answering(Time now) const;

  // The progress thread calls these two around its turn.  end_turn() returns true if the thread
  // needs its next turn within kCheckEvery.  `events_wait`: events were delivered since the last
  // turn.
  void begin_turn();
  bool end_turn(bool events_wait, Time now);

  // Notes whether this thread took an event while more events were waiting, so that it will take
  // those too.
  static void set_will_take_more_events(bool will_take_more_events) {
    will_take_more_events_ = will_take_more_events;
  }

 private:
  bool may_hold() const;
  void send_all(std::span<const int> tables);
  void update_watch();

  process::Process& process_;
  Watches& watches_;
  os::UnixChannel channel_{};
  std::vector<os::Daemon> daemons_{};  // agents that we started, with their reapers
  std::vector<std::byte> buffer_;
  std::optional<process::Process::ToAgent> unsent_{};  // the socket had no room for this message
  bool socket_full_ = false;
  std::uint32_t commands_ = 0;  // commands since messages were last received
  std::atomic<std::uint32_t> answers_awaited_{0};
  Time last_sent_at_{};                 // when the agent last got a message; 0: it has answered
  bool held_since_turn_ = false;        // messages were held since the last turn
  bool next_turn_is_soon_ = false;      // the next turn comes within kCheckEvery
  std::uint32_t times_listened_ = 0;    // how often the program listened since the last check
  std::uint32_t recent_listening_ = 0;  // sums times_listened_ and halves the sum at each check
  Time program_listens_since_{};
  std::atomic<bool> message_noted_{true};
  std::atomic<bool> holds_messages_{false};
  std::atomic<bool> program_listens_{false};
  std::atomic<bool> messages_delegated_{false};  // the progress thread does not wait for messages
  static constinit thread_local bool will_take_more_events_;
};

}  // namespace verbena::client
