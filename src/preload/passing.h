#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "preload/socket_table.h"

// Passes connections to other processes (SCM_RIGHTS), and takes over those that come.
//
// A connection that is passed goes back to TCP, unless bytes of the peer lie in the ring, or the
// connection must use the ring.  Then the process that gets it must have this library: it asks the
// service for the memory and continues the stream.  If that is not sure, the connection is reset.
//
// The descriptor itself tells the receiving library that there is a stream: while it is on its way,
// the socket option TCP_USER_TIMEOUT has a value that no program uses.  The program's own value is
// in the stream's memory.
namespace verbena::preload::passing {

// Prepares the connections that one message carries.  Allocates memory if one of them has unread
// bytes.
class Sending {
 public:
  // `channel` is the Unix socket that the message will be sent on.
  Sending(int channel, const msghdr& message);
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  // Returns true if the message carries a connection that this library tracks.
  static bool is_needed(const msghdr& message);
  // Takes the result of sendmsg(), and returns it.  A negative result means that nobody gets the
  // connections.  Keeps errno.
  ssize_t ended(ssize_t result);

 private:
  static constexpr std::size_t kDescriptorsMax = 253;  // the kernel's limit for one message

  bool receivers_have_library(int channel, const msghdr& message);
  void prepare(int fd, int channel, const msghdr& message);

  std::optional<bool> have_library_;
  std::array<int, kDescriptorsMax> kept_{};  // descriptors whose streams the receiver continues
  std::size_t kept_count_ = 0;
};

// Takes over the connections that a message has brought.  `flags` are those of recvmsg().  Keeps
// errno.
void received(const msghdr& message, int flags);

// Shares a connection that pidfd_getfd() has copied from another process.  That process does not
// know of it.  If the connection has not changed over yet, it stays on TCP in this process.  Keeps
// errno.
void copied(int fd);

// Returns the place of the program's TCP_USER_TIMEOUT while the kernel's has another value.
std::optional<std::atomic_ref<std::uint32_t>> hidden_user_timeout(const Socket& socket);

}  // namespace verbena::preload::passing
