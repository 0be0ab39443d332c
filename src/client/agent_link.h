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

// A program's connection with its agent: sends what the Process has for it, receives its messages,
// and decides which thread listens.
//
// Usually the progress thread waits for messages and tells the thread that drives next
// (note_message()).  While threads of the program poll for events of the RDMA CM, they listen
// themselves, and the progress thread is not woken for messages; it looks every kCheckEvery whether
// they still do.
//
// Messages between two events travel together: a thread that took an event while more were waiting
// comes back for them, so what it says meanwhile is held until then.  The progress thread sends it
// if that thread does not come back within kCheckEvery.
//
// Guarded by the drive lock, but for the functions marked "any thread".
class AgentLink {
 public:
  // Both outlive this.
  AgentLink(process::Process& process, Watches& watches);

  // ---- the connection ----
  bool is_open() const { return static_cast<bool>(channel_); }
  // REQUIRES: not open.  kSystem: the progress thread cannot wait for it.
  Result<void> open(os::UnixChannel channel, os::Daemon daemon);
  void close();
  // The end of file tells all who wait that the agent is not to be spoken to any more.
  void shut_down() { channel_.shut_down(); }
  // In a forked child: closes the descriptors.
  void abandon();
  // Agents that this program started have ended: no zombie of theirs stays in the program.
  void reap_ended_agents();

  // ---- sending ----
  // Sends all messages, or holds them (class comment).  `qp_table`: its descriptor, if there is
  // one.
  void flush(int qp_table);
  // False: the agent's socket is full, and messages wait for room in it.
  bool all_sent() const { return !socket_full_; }
  void wait_for_room(Time deadline);

  // ---- receiving ----
  struct Datagram {
    std::span<const std::byte> messages{};  // valid until the next call
    std::vector<os::Fd> fds{};
    bool complete = true;  // all its descriptors came
  };
  // The next one, or none for now.  An error: the agent is gone.
  Result<std::optional<Datagram>> receive();
  // Any thread: a message may be there.
  void note_message() { message_noted_.store(true); }
  // Any thread; true once for each note.
  bool take_note() { return message_noted_.load() && message_noted_.exchange(false); }
  // At the end of a command: true if it is time to receive.  A program that commands much without
  // waiting hears the agent all the same, also when the progress thread does not get the lock.
  bool is_time_to_listen();

  // ---- who listens ----
  // While one of these lives, an answer is awaited and the progress thread listens.
  class AwaitedAnswer {
   public:
    explicit AwaitedAnswer(AgentLink& link) : link_(&link) {
      ++link.answers_awaited_;
      link.listen_again();
    }
    AwaitedAnswer(AwaitedAnswer&& other) noexcept : link_(std::exchange(other.link_, nullptr)) {}
    AwaitedAnswer& operator=(AwaitedAnswer&& other) noexcept {
      std::swap(link_, other.link_);
      return *this;
    }
    ~AwaitedAnswer() {
      if (link_ != nullptr) --link_->answers_awaited_;
    }

   private:
    AgentLink* link_;
  };
  // A thread that polls for events has received the agent's messages.
  void listened(Time now);
  // The progress thread listens again.
  void listen_again();
  // Any thread: threads of the program listen.
  bool program_listens() const { return program_listens_.load(); }
  // Any thread: the progress thread has something to send or to check although the program polls.
  bool needs_turn() const {
    return message_noted_.load() || holds_messages_.load() || program_listens_.load();
  }
  bool holds_messages() const { return holds_messages_.load(); }  // any thread
  // The agent was told something a moment ago and may want this processor, to answer.
  bool may_be_answering(Time now) const;

  // The progress thread's turn.  end_turn(): true if it must look again within kCheckEvery;
  // `events_wait`: events were delivered since the last turn.
  void begin_turn();
  bool end_turn(bool events_wait, Time now);

  // This thread took an event while more were waiting: it will come back for them.
  static void set_comes_back(bool comes_back) { comes_back_ = comes_back; }

 private:
  bool may_hold() const;
  void send_all(int qp_table);
  void update_watch();

  process::Process& process_;
  Watches& watches_;
  os::UnixChannel channel_{};
  std::vector<os::Daemon> daemons_{};  // agents that we started and whose end their parents await
  std::vector<std::byte> buffer_;
  std::optional<process::Process::ToAgent> unsent_{};  // the socket had no room for it
  bool socket_full_ = false;
  std::uint32_t commands_ = 0;  // since the agent was listened to
  std::uint32_t answers_awaited_ = 0;
  Time told_at_{};              // when the agent was last told something; 0: it has answered since
  bool held_messages_ = false;  // since the last turn
  bool looks_soon_ = false;     // the progress thread looks within kCheckEvery
  std::uint32_t times_listened_ = 0;    // by the program, since the last check
  std::uint32_t recent_listening_ = 0;  // the checks before that one, each counted half of the next
  Time program_listens_since_{};
  std::atomic<bool> message_noted_{true};
  std::atomic<bool> holds_messages_{false};
  std::atomic<bool> program_listens_{false};
  static constinit thread_local bool comes_back_;
};

}  // namespace verbena::client
