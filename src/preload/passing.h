#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "preload/socket_table.h"

// Passes connections to other processes (SCM_RIGHTS), and takes over connections from them.
//
// Before a connection is passed, it goes back to TCP, unless the ring has unread bytes of the peer,
// or the connection must use the ring.  Then the process that receives the descriptor must have
// this library: it requests the memory from the service and continues the stream.  If the receiver
// may not have this library, or if the service does not provide the memory, the library resets the
// connection.
//
// The receiving library detects by a mark that a connection has a stream: while the descriptor is
// in transit, the socket option TCP_USER_TIMEOUT has a value that no program uses.  The program's
// own value is in the stream's memory.
namespace verbena::preload::passing {

// Prepares the connections that one message carries.  Allocates memory if one of them cannot go
// back to TCP.
class Sending {
 public:
  // `channel` is the Unix socket that the message will be sent on.
  Sending(int channel, const msghdr& message);
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  // Returns true if the message carries a connection that this library tracks.
  static bool is_needed(const msghdr& message);
  // Call this with the result of sendmsg(); it returns that result.  After a negative result no
  // process receives the connections, so this function undoes the preparation.  Keeps errno.
  ssize_t ended(ssize_t result);

 private:
  static constexpr std::size_t kDescriptorsMax = 253;  // the kernel's limit for one message

  bool receivers_have_library(int channel, const msghdr& message);
  void prepare(int fd, int channel, const msghdr& message);

  std::optional<bool> have_library_;  // the result of receivers_have_library(), once it is known
  // The descriptors whose streams the receiver of the message continues.
  std::array<int, kDescriptorsMax> continued_fds_{};
  std::size_t continued_count_ = 0;
};

// Takes over the connections of a received message.  `flags` are those of recvmsg().  Keeps errno.
void on_received(const msghdr& message, int flags);

// Shares a connection that pidfd_getfd() has copied from another process.  The other process does
// not notice the copy.  If the connection has not changed over yet, it stays on TCP in this
// process.  Keeps errno.
void on_copied(int fd);

// Returns the program's value of TCP_USER_TIMEOUT while a descriptor of the connection is in
// transit, so that the kernel has another value.  Otherwise returns nothing.
std::optional<std::atomic_ref<std::uint32_t>> hidden_user_timeout(const Socket& socket);

}  // namespace verbena::preload::passing
