#include "preload/passing.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include <algorithm>
#include <cerrno>

#include "os/no_cancellation.h"
#include "os/unix_peer.h"
#include "preload/change_over.h"
#include "preload/end_lock.h"
#include "preload/inheritance.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/service_link.h"

namespace verbena::preload::passing {
namespace {

// The value of TCP_USER_TIMEOUT that marks a socket in transit, in milliseconds (more than 24
// days).
constexpr int kInTransitMark = 0x7eb3a52d;

// Calls visit(fd) for each descriptor that the message carries.  Stops at a header that the kernel
// refuses (EINVAL).
template <class Visit>
void for_each_descriptor(const msghdr& message, Visit visit) {
  if (message.msg_control == nullptr || message.msg_controllen < sizeof(cmsghdr)) return;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    const auto* begin = static_cast<const unsigned char*>(message.msg_control);
    const auto at = static_cast<std::size_t>(reinterpret_cast<const unsigned char*>(c) - begin);
    if (c->cmsg_len < CMSG_LEN(0) || c->cmsg_len > message.msg_controllen - at) return;
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      visit(fd);
    }
  }
}

int user_timeout_of(int fd) {
  int value = 0;
  socklen_t bytes = sizeof(value);
  return next().getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &bytes) == 0 ? value : -1;
}
void set_user_timeout(int fd, int value) {
  next().setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof(value));
}

// Counts one more descriptor in transit.  The descriptor has a share of the end, which its receiver
// takes over.
void begin_passing(int fd, Socket& socket) {
  socket.is_shared.store(true);
  const EndLock lock(socket.end->receive_lock, socket.lock_is_stuck);
  stream::Passing& passing = socket.end->passing;
  if (passing.count == 0) {
    passing.user_timeout = static_cast<std::uint32_t>(std::max(user_timeout_of(fd), 0));
    set_user_timeout(fd, kInTransitMark);
  }
  ++passing.count;
  socket.holders().fetch_add(1);
}

// Subtracts one from the count of descriptors in transit.  The caller takes over the descriptor's
// share of the end.
void end_passing(int fd, Socket& socket) {
  const EndLock lock(socket.end->receive_lock, socket.lock_is_stuck);
  stream::Passing& passing = socket.end->passing;
  if (passing.count == 0) return;
  if (--passing.count == 0) set_user_timeout(fd, static_cast<int>(passing.user_timeout));
}

// Returns the socket of another descriptor of this process for the same connection, if there is
// one.
SocketUse find_same_connection(int fd) {
  const std::uint64_t cookie = service_link::cookie_of(fd);
  int same = -1;
  SocketTable::for_each(0, kDescriptorsMax - 1, [&](int other, const Socket& socket) {
    if (other != fd && socket.cookie == cookie && socket.uses_stream()) same = other;
  });
  return cookie != 0 && same >= 0 ? SocketTable::find(same) : SocketUse();
}

// Takes over a connection whose descriptor was just received.  With `is_peek`, a later recvmsg()
// will receive the same descriptor again.
void take_over(int fd, bool is_peek) {
  if (SocketUse same = find_same_connection(fd)) {
    SocketTable::add_copy(*same, fd);
    if (is_peek) return;
    end_passing(fd, *same);
    same->holders().fetch_sub(1);  // this process has a share of the end already
    return;
  }
  Socket* const socket = SocketTable::add(fd);
  if (socket == nullptr) return leaving::reset(fd);
  if (!inheritance::continue_connection(fd, *socket)) return;
  if (is_peek) {
    socket->holders().fetch_add(1);
  } else {
    end_passing(fd, *socket);
  }
}

// Shares the stream of another process, which does not notice this.
void join_stream(int fd, Socket& socket) {
  socket.nonblocking.store((next().fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
  const auto memory = service_link::request_memory(fd, socket);
  if (memory && change_over::continue_stream(socket, memory->view())) {
    std::uint32_t holders = socket.holders().load();
    while (holders != 0 && !socket.holders().compare_exchange_weak(holders, holders + 1)) {
    }
    if (holders != 0) return;
    leaving::reset(fd);  // the other process has just closed the connection
  }
  socket.keep_on_tcp();
  socket.state.store(Socket::State::kTcpOnly);
}

}  // namespace

bool Sending::is_needed(const msghdr& message) {
  bool needed = false;
  for_each_descriptor(message, [&](int fd) { needed |= SocketTable::has(fd); });
  return needed;
}

Sending::Sending(int channel, const msghdr& message) {
  const int error = errno;
  const os::NoCancellation no_cancellation;
  for_each_descriptor(message, [&](int fd) { prepare(fd, channel, message); });
  errno = error;
}

void Sending::prepare(int fd, int channel, const msghdr& message) {
  const SocketUse socket = SocketTable::find(fd);
  if (!socket) return;
  const bool keeps_ring = socket->must_use_ring.load() && socket->uses_stream();
  if (!keeps_ring && leaving::use_only_tcp(fd, *socket, stream::Reason::kPassed)) return;
  if (continued_count_ < continued_fds_.size() && receivers_have_library(channel, message) &&
      service_link::request_memory(fd, *socket)) {
    begin_passing(fd, *socket);
    continued_fds_[continued_count_++] = fd;
  } else {
    leaving::reset(fd);
  }
}

bool Sending::receivers_have_library(int channel, const msghdr& message) {
  if (!have_library_) {
    have_library_ =
        message.msg_namelen == 0 &&
        os::all_owners_have_library(os::unix_peer_inode(channel), inheritance::kLibrary);
  }
  return *have_library_;
}

ssize_t Sending::ended(ssize_t result) {
  if (result >= 0) return result;
  const int error = errno;
  while (continued_count_ > 0) {
    const int fd = continued_fds_[--continued_count_];
    const SocketUse socket = SocketTable::find(fd);
    if (!socket || !socket->uses_stream()) continue;
    end_passing(fd, *socket);
    socket->holders().fetch_sub(1);
  }
  errno = error;
  return result;
}

void on_received(const msghdr& message, int flags) {
  const int error = errno;
  const os::NoCancellation no_cancellation;
  for_each_descriptor(message, [&](int fd) {
    if (user_timeout_of(fd) == kInTransitMark) take_over(fd, (flags & MSG_PEEK) != 0);
  });
  errno = error;
}

void on_copied(int fd) {
  const int error = errno;
  const os::NoCancellation no_cancellation;
  if (user_timeout_of(fd) < 0) {
    errno = error;
    return;  // not a TCP socket
  }
  if (SocketUse same = find_same_connection(fd)) {
    SocketTable::add_copy(*same, fd);
  } else if (Socket* const socket = SocketTable::add(fd)) {
    join_stream(fd, *socket);
  }
  errno = error;
}

std::optional<std::atomic_ref<std::uint32_t>> hidden_user_timeout(const Socket& socket) {
  stream::Passing& passing = socket.end->passing;
  if (std::atomic_ref(passing.count).load(std::memory_order_relaxed) == 0) return std::nullopt;
  return std::atomic_ref(passing.user_timeout);
}

}  // namespace verbena::preload::passing
