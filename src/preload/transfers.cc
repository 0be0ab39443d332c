#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "os/clock.h"
#include "os/no_cancellation.h"
#include "preload/change_over.h"
#include "preload/export.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/passing.h"
#include "preload/required.h"
#include "preload/socket_table.h"
#include "preload/stream_calls.h"
#include "preload/timeouts.h"

// Defines the functions that transfer bytes: read(), write() and similar functions.  For a
// descriptor that is not a tracked connection, each function only calls the original function
// (next.h).
namespace verbena::preload {
namespace {

constexpr int kKernelOnlyFlags = MSG_OOB | MSG_ERRQUEUE;

// Returns false and sets errno if the connection must use the ring but cannot use it.
bool may_begin(int fd, Socket& socket) {
  if (!socket.must_use_ring.load(std::memory_order_relaxed) ||
      required::wait_for_ring(fd, socket)) {
    return true;
  }
  errno = ECONNRESET;
  return false;
}

// Receives from the stream if the connection has changed over, otherwise by `call_kernel()`.
template <class KernelCall>
ssize_t receive(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags,
                KernelCall call_kernel) {
  // The stream cannot count an out-of-band byte, so the connection goes back to TCP.
  if ((flags & MSG_OOB) != 0) (void)leaving::use_only_tcp(fd, socket, stream::Reason::kUrgent);
  if ((flags & kKernelOnlyFlags) != 0) return call_kernel();
  if (!may_begin(fd, socket)) return -1;
  if (change_over::begin(fd, socket)) {
    return stream_calls::receive(fd, socket, parts, count, flags);
  }
  change_over::TcpCall call(socket);
  const ssize_t bytes = call_kernel();
  return (flags & MSG_PEEK) != 0 ? bytes : call.received(bytes);
}

// Sends by the stream if the connection has changed over, otherwise by `call_kernel()`.
template <class KernelCall>
ssize_t send(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags,
             KernelCall call_kernel) {
  if ((flags & MSG_OOB) != 0) (void)leaving::use_only_tcp(fd, socket, stream::Reason::kUrgent);
  // The kernel numbers the calls with MSG_ZEROCOPY, and later reports by number which calls' memory
  // it no longer needs.  Calls by the ring would have no number, so the connection goes back to
  // TCP.  This function calls the kernel once, while stream_calls::send() may do so several times.
  if ((flags & MSG_ZEROCOPY) != 0) {
    (void)leaving::use_only_tcp(fd, socket, stream::Reason::kKernelCall);
    if (socket.uses_stream()) {
      if (const int error = socket.take_error()) {
        errno = error;
        return -1;
      }
      return call_kernel();
    }
  }
  if (!may_begin(fd, socket)) return -1;
  if (change_over::begin(fd, socket)) {
    return stream_calls::send(fd, socket, parts, count, flags);
  }
  change_over::TcpCall call(socket);
  return call.sent(call_kernel());
}

iovec part(const void* bytes, std::size_t count) {
  return {.iov_base = const_cast<void*>(bytes), .iov_len = count};
}

// Returns true if all parts are empty.  Then readv() and writev() return at once, unlike recv() and
// send().
bool are_all_empty(const iovec* parts, int count) {
  return std::all_of(parts, parts + count, [](const iovec& one) { return one.iov_len == 0; });
}

// Converts flags of preadv2() and pwritev2() to flags of recvmsg() and sendmsg().
int message_flags(int flags) { return (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0; }

std::size_t part_count(int count) { return count < 0 ? 0 : static_cast<std::size_t>(count); }

ssize_t receive_message(int fd, Socket& socket, msghdr* message, int flags) {
  bool is_by_kernel = false;
  const ssize_t bytes = receive(fd, socket, message->msg_iov, message->msg_iovlen, flags, [&] {
    is_by_kernel = true;
    return next().recvmsg(fd, message, flags);
  });
  if (bytes < 0 || is_by_kernel) return bytes;
  // Bytes of a stream have no sender's address and no control data.
  if (message->msg_name != nullptr) message->msg_namelen = 0;
  message->msg_controllen = 0;
  message->msg_flags = flags & MSG_CMSG_CLOEXEC;
  return bytes;
}

// Works as recvmmsg(2) for a connection that has changed over.  Like the kernel, it checks the
// timeout only after each message.
int receive_messages_by_stream(int fd, Socket& socket, std::span<mmsghdr> messages, int flags,
                               const timespec* timeout) {
  // Unlike the other calls, recvmmsg() reports an error first, even if bytes came before the error.
  int error = 0;
  socklen_t bytes_of_error = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes_of_error);
  if (error != 0) {
    errno = error;
    return -1;
  }
  const Time began = timeout != nullptr ? os::now() : Time{};
  int done = 0;
  for (mmsghdr& message : messages) {
    const ssize_t bytes = receive_message(fd, socket, &message.msg_hdr, flags & ~MSG_WAITFORONE);
    if (bytes < 0) {
      if (done == 0) return -1;
      if (errno != EAGAIN) socket.pending_error.store(errno);
      break;
    }
    message.msg_len = static_cast<unsigned>(bytes);
    ++done;
    if ((message.msg_hdr.msg_flags & MSG_OOB) != 0) break;
    if ((flags & MSG_WAITFORONE) != 0) flags |= MSG_DONTWAIT;
    if (timeout != nullptr && os::now() - began >= duration_of(*timeout)) break;
  }
  return done;
}

// Keeps a connection on TCP if the thread is cancelled in recvmmsg().  Then nobody counts the bytes
// of the messages that the call has received already.
class CountGuard {
 public:
  explicit CountGuard(Socket& socket) : socket_(socket) {}
  CountGuard(const CountGuard&) = delete;
  CountGuard& operator=(const CountGuard&) = delete;
  ~CountGuard() {
    if (!has_returned_) socket_.keep_on_tcp();
  }
  void call_has_returned() { has_returned_ = true; }

 private:
  Socket& socket_;
  bool has_returned_ = false;
};

// Works as recvmmsg(2).
int receive_messages(int fd, Socket& socket, std::span<mmsghdr> messages, int flags,
                     timespec* timeout) {
  const auto call_kernel = [&] {
    const auto count = static_cast<unsigned>(messages.size());
    return next().recvmmsg(fd, messages.data(), count, flags, timeout);
  };
  if (!is_valid(timeout)) return call_kernel();
  if ((flags & MSG_OOB) != 0) (void)leaving::use_only_tcp(fd, socket, stream::Reason::kUrgent);
  if ((flags & kKernelOnlyFlags) != 0) return call_kernel();
  if (!may_begin(fd, socket)) return -1;
  if (change_over::begin(fd, socket)) {
    return receive_messages_by_stream(fd, socket, messages, flags, timeout);
  }
  change_over::TcpCall call(socket);
  CountGuard guard(socket);
  const int done = call_kernel();
  guard.call_has_returned();
  if (done <= 0 || (flags & MSG_PEEK) != 0) return done;
  ssize_t bytes = 0;
  for (const mmsghdr& message : messages.first(static_cast<std::size_t>(done))) {
    bytes += message.msg_len;
  }
  call.received(bytes);
  return done;
}

ssize_t send_message(int fd, Socket& socket, const msghdr* message, int flags) {
  return send(fd, socket, message->msg_iov, message->msg_iovlen, flags,
              [&] { return next().sendmsg(fd, message, flags); });
}

}  // namespace
}  // namespace verbena::preload

using verbena::preload::next;
using verbena::preload::part;
using verbena::preload::part_count;
using verbena::preload::SocketTable;
namespace change_over = verbena::preload::change_over;
namespace leaving = verbena::preload::leaving;
namespace passing = verbena::preload::passing;
namespace preload = verbena::preload;

// ---- receiving

VB_EXPORT ssize_t read(int fd, void* buffer, size_t bytes) {
  const auto socket = SocketTable::find(fd);
  if (!socket || bytes == 0) return next().read(fd, buffer, bytes);
  const iovec whole = part(buffer, bytes);
  return preload::receive(fd, *socket, &whole, 1, 0,
                          [&] { return next().read(fd, buffer, bytes); });
}

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
VB_EXPORT ssize_t __read_chk(int fd, void* buffer, size_t bytes, size_t buffer_bytes) {
  if (bytes > buffer_bytes || !SocketTable::has(fd))
    return next().read_chk(fd, buffer, bytes, buffer_bytes);
  return read(fd, buffer, bytes);
}

VB_EXPORT ssize_t readv(int fd, const iovec* parts, int count) {
  const auto socket = SocketTable::find(fd);
  if (!socket || count <= 0 || preload::are_all_empty(parts, count)) {
    return next().readv(fd, parts, count);
  }
  return preload::receive(fd, *socket, parts, part_count(count), 0,
                          [&] { return next().readv(fd, parts, count); });
}

// Programs pass the offset -1 for sockets, because sockets have no file position.
VB_EXPORT ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  const auto socket = SocketTable::find(fd);
  if (!socket || count <= 0 || offset != -1 || preload::are_all_empty(parts, count)) {
    return next().preadv2(fd, parts, count, offset, flags);
  }
  return preload::receive(fd, *socket, parts, part_count(count), preload::message_flags(flags),
                          [&] { return next().preadv2(fd, parts, count, offset, flags); });
}
VB_EXPORT ssize_t preadv64v2(int fd, const iovec* parts, int count, off64_t offset, int flags) {
  return preadv2(fd, parts, count, offset, flags);
}

VB_EXPORT ssize_t recv(int fd, void* buffer, size_t bytes, int flags) {
  const auto socket = SocketTable::find(fd);
  if (!socket) return next().recv(fd, buffer, bytes, flags);
  const iovec whole = part(buffer, bytes);
  return preload::receive(fd, *socket, &whole, 1, flags,
                          [&] { return next().recv(fd, buffer, bytes, flags); });
}

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
VB_EXPORT ssize_t __recv_chk(int fd, void* buffer, size_t bytes, size_t buffer_bytes, int flags) {
  if (bytes > buffer_bytes || !SocketTable::has(fd)) {
    return next().recv_chk(fd, buffer, bytes, buffer_bytes, flags);
  }
  return recv(fd, buffer, bytes, flags);
}

VB_EXPORT ssize_t recvfrom(int fd, void* buffer, size_t bytes, int flags, sockaddr* from,
                           socklen_t* from_bytes) {
  const auto socket = SocketTable::find(fd);
  if (!socket) return next().recvfrom(fd, buffer, bytes, flags, from, from_bytes);
  const iovec whole = part(buffer, bytes);
  const ssize_t received = preload::receive(fd, *socket, &whole, 1, flags, [&] {
    return next().recvfrom(fd, buffer, bytes, flags, from, from_bytes);
  });
  if (received >= 0 && from != nullptr && from_bytes != nullptr) *from_bytes = 0;
  return received;
}

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
VB_EXPORT ssize_t __recvfrom_chk(int fd, void* buffer, size_t bytes, size_t buffer_bytes, int flags,
                                 sockaddr* from, socklen_t* from_bytes) {
  if (bytes > buffer_bytes || !SocketTable::has(fd)) {
    return next().recvfrom_chk(fd, buffer, bytes, buffer_bytes, flags, from, from_bytes);
  }
  return recvfrom(fd, buffer, bytes, flags, from, from_bytes);
}

VB_EXPORT ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const auto socket = SocketTable::find(fd);
  if (socket && message != nullptr) {
    return preload::receive_message(fd, *socket, message, flags);
  }
  const ssize_t bytes = next().recvmsg(fd, message, flags);
  if (bytes >= 0) passing::on_received(*message, flags);
  return bytes;
}

VB_EXPORT int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  const auto socket = SocketTable::find(fd);
  if (socket && messages != nullptr) {
    return preload::receive_messages(fd, *socket, {messages, count}, flags, timeout);
  }
  const int done = next().recvmmsg(fd, messages, count, flags, timeout);
  for (int i = 0; i < done; ++i) passing::on_received(messages[i].msg_hdr, flags);
  return done;
}

// ---- sending

VB_EXPORT ssize_t write(int fd, const void* bytes, size_t count) {
  const auto socket = SocketTable::find(fd);
  if (!socket) return next().write(fd, bytes, count);
  const iovec whole = part(bytes, count);
  return preload::send(fd, *socket, &whole, 1, 0, [&] { return next().write(fd, bytes, count); });
}

VB_EXPORT ssize_t writev(int fd, const iovec* parts, int count) {
  const auto socket = SocketTable::find(fd);
  if (!socket || count <= 0 || preload::are_all_empty(parts, count)) {
    return next().writev(fd, parts, count);
  }
  return preload::send(fd, *socket, parts, part_count(count), 0,
                       [&] { return next().writev(fd, parts, count); });
}

VB_EXPORT ssize_t pwritev2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  const auto socket = SocketTable::find(fd);
  if (!socket || count <= 0 || offset != -1 || preload::are_all_empty(parts, count)) {
    return next().pwritev2(fd, parts, count, offset, flags);
  }
  return preload::send(fd, *socket, parts, part_count(count), preload::message_flags(flags),
                       [&] { return next().pwritev2(fd, parts, count, offset, flags); });
}
VB_EXPORT ssize_t pwritev64v2(int fd, const iovec* parts, int count, off64_t offset, int flags) {
  return pwritev2(fd, parts, count, offset, flags);
}

VB_EXPORT ssize_t send(int fd, const void* bytes, size_t count, int flags) {
  const auto socket = SocketTable::find(fd);
  if (!socket) return next().send(fd, bytes, count, flags);
  const iovec whole = part(bytes, count);
  return preload::send(fd, *socket, &whole, 1, flags,
                       [&] { return next().send(fd, bytes, count, flags); });
}

VB_EXPORT ssize_t sendto(int fd, const void* bytes, size_t count, int flags, const sockaddr* to,
                         socklen_t to_bytes) {
  const auto socket = SocketTable::find(fd);
  if (!socket) return next().sendto(fd, bytes, count, flags, to, to_bytes);
  const iovec whole = part(bytes, count);
  return preload::send(fd, *socket, &whole, 1, flags,
                       [&] { return next().sendto(fd, bytes, count, flags, to, to_bytes); });
}

VB_EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const auto socket = SocketTable::find(fd);
  if (socket && message != nullptr) return preload::send_message(fd, *socket, message, flags);
  if (message == nullptr || !passing::Sending::is_needed(*message)) {
    return next().sendmsg(fd, message, flags);
  }
  passing::Sending connections(fd, *message);
  return connections.ended(next().sendmsg(fd, message, flags));
}

VB_EXPORT int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  const auto socket = SocketTable::find(fd);
  const bool passes =
      messages != nullptr && std::any_of(messages, messages + count, [](const mmsghdr& one) {
        return passing::Sending::is_needed(one.msg_hdr);
      });
  if (messages == nullptr || (!socket && !passes)) {
    return next().sendmmsg(fd, messages, count, flags);
  }
  unsigned done = 0;
  for (; done < count; ++done) {
    const ssize_t bytes = sendmsg(fd, &messages[done].msg_hdr, flags);
    if (bytes < 0) break;
    messages[done].msg_len = static_cast<unsigned>(bytes);
  }
  return done > 0 || count == 0 ? static_cast<int>(done) : -1;
}

// ---- between descriptors

VB_EXPORT ssize_t sendfile(int to, int from, off_t* offset, size_t count) noexcept {
  const auto socket = SocketTable::find(to);
  if (!socket) return next().sendfile(to, from, offset, count);
  const verbena::os::NoCancellation no_cancellation;
  if (!preload::may_begin(to, *socket)) return -1;
  if (change_over::begin(to, *socket)) {
    return preload::stream_calls::send_file(to, *socket, from, offset, count);
  }
  change_over::TcpCall call(*socket);
  return call.sent(next().sendfile(to, from, offset, count));
}
VB_EXPORT ssize_t sendfile64(int to, int from, off64_t* offset, size_t count) noexcept {
  return sendfile(to, from, offset, count);
}

// The kernel moves the bytes between socket and pipe, so the connection goes back to TCP.  If the
// ring has unread bytes, this library first moves them to the pipe through a buffer.
VB_EXPORT ssize_t splice(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t count,
                         unsigned flags) {
  constexpr auto kReason = verbena::stream::Reason::kKernelCall;
  if (const auto socket = SocketTable::find(to)) (void)leaving::use_only_tcp(to, *socket, kReason);
  if (const auto socket = SocketTable::find(from)) {
    if (!leaving::use_only_tcp(from, *socket, kReason) && from_offset == nullptr && count > 0) {
      return preload::stream_calls::splice(from, *socket, to, count, flags);
    }
  }
  return next().splice(from, from_offset, to, to_offset, count, flags);
}
