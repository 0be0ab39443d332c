#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "agent/watch.h"
#include "ipc/messages.h"
#include "os/fd.h"
#include "os/unix_channel.h"

namespace verbena::agent {

// The connection of one program: messages in and out, within limits, until either side ends it.
//
//   program --> received(), at most kRequestsMax of them without a reply; the rest waits outside
//   program <-- send(), joined to what goes at the same time; at most kQueueMax messages and
//               kQueueBytesMax bytes not taken, then the program is given up
//
// It ends by end of file (also after exec, since the socket is close-on-exec), by the death of the
// process, whoever has a copy of the socket (what it has said before is heard), or by a limit. Then
// ended() is called, from the loop and never from inside another call, once; the owner destroys the
// connection.  One thread.
class Connection {
 public:
  static constexpr std::size_t kQueueMax = 4096;  // messages
  static constexpr std::size_t kQueueBytesMax = std::size_t{8} << 20;
  static constexpr std::size_t kRequestsMax = 256;     // outstanding
  static constexpr std::size_t kMessagesPerTurn = 64;  // then others have their turn

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void received(Connection& from, const ipc::Envelope& envelope,
                          std::span<const std::byte> message, std::vector<os::Fd> fds) = 0;
    // All that was there for now was received: so many messages.
    virtual void heard(Connection& from, std::size_t messages) = 0;
    virtual void ended(Connection& connection, const std::string& why) = 0;
  };
  // How often a limit was met, by all connections that count into it.
  struct LimitsMet {
    std::uint64_t queue = 0;
    std::uint64_t requests = 0;
  };

  Connection(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Owner& owner,
             LimitsMet& limits_met);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  std::uint64_t id() const { return id_; }

  // A reply or an event.  It goes when the loop has done what there is to do now, or sooner.
  // Copies of the descriptors are made if it has to wait.
  void send(ipc::Bytes message, std::span<const int> fds = {});
  // Now.
  void flush();
  template <class Reply>
  void reply(std::uint64_t request, const Reply& reply, std::span<const int> fds = {}) {
    send(ipc::encode(request, reply), fds);
  }
  // The reply of a request that has nothing to say but how it went.
  void done(std::uint64_t request, const Result<void>& result);

  // Ends it when `pidfd` says that the process is dead.
  void watch_death(os::Fd pidfd);
  // Takes nothing more, and ends once everything is sent.
  void finish();

  const os::UnixChannel& channel() const { return channel_; }
  // Messages that the socket has not taken.
  std::size_t queued() const { return queued_; }
  std::size_t outstanding() const { return outstanding_; }

 private:
  struct Outgoing {
    ipc::Bytes datagram;
    std::size_t messages;
    std::vector<os::Fd> fds;
  };

  void on_readable();
  std::size_t receive(std::span<std::byte> buffer);
  void on_death();
  bool hand_up(std::span<const std::byte> message, bool is_last, std::vector<os::Fd> fds);
  void on_writable();
  void on_unsent(const Error& error);
  void send_datagram(const ipc::Bytes& datagram, std::size_t messages, std::span<const int> fds);
  void enqueue(ipc::Bytes datagram, std::size_t messages, std::span<const int> fds);
  void update_reading();
  void end(std::string why);

  asio::io_context& loop_;
  os::UnixChannel channel_;
  os::Fd pidfd_{};
  std::uint64_t id_;
  Owner& owner_;
  LimitsMet& limits_met_;
  ipc::Bytes joined_{};  // messages that go together
  std::size_t joined_messages_ = 0;
  Soon flush_;
  std::deque<Outgoing> queue_{};
  std::size_t queued_ = 0;  // messages
  std::size_t queued_bytes_ = 0;
  std::size_t outstanding_ = 0;
  bool finishing_ = false;
  bool deaf_ = false;  // nobody reads any more; what was said before is still to be heard
  bool dead_ = false;
  bool ended_ = false;
  std::string why_{};
  Soon end_;  // says ended() from the loop
  Watch readable_{};
  Watch death_{};
};

}  // namespace verbena::agent
