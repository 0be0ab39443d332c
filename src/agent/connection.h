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

// Carries messages between the agent and one program in both directions, within limits, until
// either side ends it.
//
//   program --> received(): at most kRequestsMax requests without a reply; later requests wait in
//               the socket
//   program <-- send(): joins messages of about the same time into one datagram.  If the socket is
//               full and more than kQueueMax messages or kQueueBytesMax bytes wait for space in
//               it, the connection ends.
//
// A connection ends by end of file (also after exec, since the socket is close-on-exec), by the
// death of the process, by the limit of send(), by an invalid request, by an error of the socket,
// or by finish().  When the process dies, messages that it has sent before are still received, and
// copies of the socket in other processes do not matter.  At the end, the loop calls ended() once,
// never from inside a call of this class.  The owner then destroys the connection.
// Only one thread may use it.
class Connection {
 public:
  static constexpr std::size_t kQueueMax = 4096;  // messages
  static constexpr std::size_t kQueueBytesMax = std::size_t{8} << 20;
  static constexpr std::size_t kRequestsMax = 256;      // requests without a reply
  static constexpr std::size_t kMessagesPerEvent = 64;  // then the loop handles other events

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void received(Connection& from, const ipc::Envelope& envelope,
                          std::span<const std::byte> message, std::vector<os::Fd> fds) = 0;
    // Follows the calls of received() for `messages` messages that had arrived together.
    virtual void received_all(Connection& from, std::size_t messages) = 0;
    virtual void ended(Connection& connection, const std::string& why) = 0;
  };
  // Counts how often connections have reached a limit.  Several connections share one object.
  struct LimitCounters {
    std::uint64_t queue = 0;
    std::uint64_t requests = 0;
  };

  Connection(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Owner& owner,
             LimitCounters& limit_counters);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  std::uint64_t id() const { return id_; }

  // Queues a reply or an event.  The message is sent after the loop's current work, or sooner.
  // Duplicates the descriptors if the message has to wait for the socket.
  void send(ipc::Bytes message, std::span<const int> fds = {});
  // Sends queued messages now.
  void flush();
  template <class Reply>
  void reply(std::uint64_t request, const Reply& reply, std::span<const int> fds = {}) {
    send(ipc::encode(request, reply), fds);
  }
  // Replies to a request that returns nothing but success or an error.
  void reply_result(std::uint64_t request, const Result<void>& result);

  // Ends the connection when the process of `pidfd` ends.
  void watch_death(os::Fd pidfd);
  // Receives no more messages, and ends the connection when everything is sent.
  void finish();

  const os::UnixChannel& channel() const { return channel_; }
  // Returns the number of messages that wait until the socket has buffer space.
  std::size_t queued() const { return queued_; }
  // Returns the number of requests without a reply.
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
  bool deliver(std::span<const std::byte> message, bool is_last, std::vector<os::Fd> fds);
  void on_writable();
  void on_send_error(const Error& error);
  void send_datagram(const ipc::Bytes& datagram, std::size_t messages, std::span<const int> fds);
  void enqueue(ipc::Bytes datagram, std::size_t messages, std::span<const int> fds);
  void update_reading();
  void end(std::string why);

  asio::io_context& loop_;
  os::UnixChannel channel_;
  os::Fd pidfd_{};
  std::uint64_t id_;
  Owner& owner_;
  LimitCounters& limit_counters_;
  ipc::Bytes next_datagram_{};  // messages that will be sent together
  std::size_t next_datagram_messages_ = 0;
  DeferredCall flush_;
  std::deque<Outgoing> queue_{};
  std::size_t queued_ = 0;  // messages
  std::size_t queued_bytes_ = 0;
  std::size_t outstanding_ = 0;
  bool finishing_ = false;
  // The program has closed the connection.  The socket may still contain messages from the program.
  bool peer_closed_ = false;
  bool process_has_ended_ = false;
  bool ended_ = false;
  std::string why_{};
  DeferredCall end_;  // calls ended() from the loop
  Watch socket_watch_{};
  Watch process_watch_{};
};

}  // namespace verbena::agent
