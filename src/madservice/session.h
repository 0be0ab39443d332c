#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "agent/watch.h"
#include "base/error.h"
#include "ipc/umad_messages.h"
#include "os/unix_channel.h"
#include "os/watched_file.h"

namespace verbena::madservice {

// Serves a program that uses libibumad.  A session has a connection for the program's requests, and
// may have a second connection for MADs to the program.
//
// The session ends when one of the connections is closed, or a message is invalid.  Then the loop
// calls on_session_end() once, never from inside another call, and the owner destroys the session.
// Only one thread may use a session.
class Session {
 public:
  // Limits the MADs that a program has not read yet.  MADs beyond these limits are lost.  The first
  // limit is that of Linux.
  static constexpr std::size_t kQueueMax = 200'000;
  static constexpr std::size_t kQueueBytesMax = std::size_t{256} << 20;
  // Limits the requests of a program that are handled at once, so that no session blocks others.
  static constexpr std::size_t kMessagesPerWakeup = 64;

  class Owner {
   public:
    virtual ~Owner() = default;
    // Handles a request.  Returns false if the message is invalid, which ends the session.
    virtual bool on_message(Session& from, std::span<const std::byte> message,
                            std::vector<os::Fd> fds) = 0;
    // Reports that the program has opened or closed its SM file (see open_sm_file()).
    virtual void on_sm_file(Session& session, bool is_open) = 0;
    virtual void on_session_end(Session& session) = 0;
  };

  Session(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Owner& owner);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::uint64_t id() const { return id_; }
  // Returns the number of MADs that the program did not get, because it had not read earlier MADs,
  // or because there was no memory or descriptor for a long MAD.
  std::uint64_t lost_mads() const { return lost_mads_; }

  template <class Message>
  void answer(const Message& message, int fd = -1) {
    answer_bytes(ipc::umad::encode(message), fd);
  }
  // Makes the connection for MADs, and returns the channel for the program.
  Result<os::UnixChannel> open_mads();
  // Makes the SM file, which the program's subnet manager (SM) keeps open while it runs.  Returns
  // its descriptor, which the session owns.
  Result<int> open_sm_file();
  // Sends a MAD to the program.  If the channel is full, queues the MAD.  If the queue is full, the
  // MAD is lost.
  void deliver(const ipc::umad::UserMad& header, std::vector<std::byte> mad);

  // The owner stores its own data here.
  bool has_completed_hello = false;
  std::uint32_t node = 0;  // the index of the session's HCA in the topology
  std::uint8_t port = 0;
  bool has_open_sm_file = false;

 private:
  struct QueuedMad {
    ipc::umad::UserMad header{};
    std::vector<std::byte> mad{};
  };

  void answer_bytes(std::span<const std::byte> message, int fd);
  Result<void> send_mad(const QueuedMad& queued);
  void send_queued();
  void on_request();
  void on_mads_readable();
  void on_sm_file();
  void end();

  asio::io_context& loop_;
  os::UnixChannel channel_;
  std::uint64_t id_;
  Owner& owner_;
  os::UnixChannel mads_{};
  std::optional<os::WatchedFile> sm_file_{};
  std::deque<QueuedMad> queue_{};
  std::size_t queue_bytes_ = 0;
  std::uint64_t lost_mads_ = 0;
  bool has_ended_ = false;
  agent::DeferredCall end_;
  agent::Watch requests_;
  agent::Watch mads_watch_{};
  agent::Watch sm_watch_{};
};

}  // namespace verbena::madservice
