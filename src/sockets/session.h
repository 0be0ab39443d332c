#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "agent/watch.h"
#include "base/time.h"
#include "broker/messages.h"
#include "os/shared_memory.h"
#include "os/unix_channel.h"

namespace verbena::sockets {

// Carries messages between the service and one program or tool, until either side ends the session.
//
// A session ends when the peer closes the socket (also by exec()), when a message cannot be
// received or sent, when the peer has not read kQueueMax messages, or after finish().  Then the
// event loop calls on_session_end() once, never from inside another call, and the owner destroys
// the session.  Only one thread may use a session.
class Session {
 public:
  static constexpr std::size_t kQueueMax = 200'000;  // more than the rows of the longest list
  // After this many messages of a session, the event loop serves other sessions.
  static constexpr std::size_t kMessagesPerWakeup = 64;

  enum class Role : std::uint8_t { kNew, kProgram, kTool };

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_message(Session& from, std::span<const std::byte> message,
                            std::vector<os::Fd> fds) = 0;
    // The session calls this after a group of calls of on_message().
    virtual void on_messages_end() = 0;
    virtual void on_session_end(Session& session) = 0;
  };

  Session(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Owner& owner);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::uint64_t id() const { return id_; }

  // Sends a message with descriptors.  If the message has to wait in the queue, the session
  // duplicates the descriptors.
  template <class Message>
  void send(const Message& message, std::initializer_list<int> fds = {}) {
    send_bytes(broker::bytes_of(message), fds);
  }
  // Receives no more messages, and ends the session when all messages in the queue are sent.
  void finish();
  // Sets the shared page in which the session counts the sent messages, so that the program can see
  // that there are new ones.
  void set_mailbox(os::Mapping mailbox) { mailbox_ = std::move(mailbox); }

  // Only the owner of the session uses these members.
  Role role = Role::kNew;
  std::uint32_t uid = 0;
  std::uint32_t pid = 0;
  std::string program{};
  Time hello_deadline = kNever;

 private:
  struct Outgoing {
    std::vector<std::byte> message{};
    std::vector<os::Fd> fds{};
  };

  void send_bytes(std::span<const std::byte> message, std::initializer_list<int> fds);
  Result<void> send_now(std::span<const std::byte> message, std::span<const int> fds);
  void on_readable();
  void on_writable();
  void end();

  os::UnixChannel channel_;
  std::uint64_t id_;
  Owner& owner_;
  os::Mapping mailbox_{};
  std::deque<Outgoing> queue_{};
  bool is_finishing_ = false;
  bool has_ended_ = false;
  agent::DeferredCall deferred_end_;
  agent::Watch watch_;
};

}  // namespace verbena::sockets
