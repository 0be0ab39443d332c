#include "preload/leaving.h"

#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <climits>

#include "os/system_call.h"
#include "preload/end_lock.h"
#include "preload/next.h"
#include "preload/required.h"
#include "preload/service_link.h"
#include "preload/stream_calls.h"
#include "preload/waits.h"

namespace verbena::preload::leaving {

void restore_delay_options(int fd, Socket& socket) {
  for (const int option : {TCP_NODELAY, TCP_CORK}) {
    const int value = socket.emulated_option(IPPROTO_TCP, option)->load() ? 1 : 0;
    next().setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
  }
}

namespace {

enum class Incoming : std::uint8_t {
  kPlain,    // all bytes come by TCP from now on
  kUnread,   // the ring has unread bytes, so nothing has changed
  kInvalid,  // the stream's memory has invalid values, or the lock is never released
};

// Takes the outgoing direction back to TCP.  Returns false if the stream's memory has invalid
// values, or if the lock is never released.
bool leave_outgoing(int fd, Socket& socket, stream::Reason reason) {
  stream::Sender sender = socket.sender();
  const EndLock lock(socket.end->send_lock, socket.lock_is_stuck);
  if (sender.has_left()) return true;
  if (lock.outcome() == EndLock::Outcome::kGivenUp) return false;
  const auto result = sender.leave(reason);
  if (result && *result) wake_peer(sender);
  restore_delay_options(fd, socket);
  return result.has_value();
}

Incoming leave_incoming(Socket& socket, stream::Reason reason) {
  stream::Receiver receiver = socket.receiver();
  const EndLock lock(socket.end->receive_lock, socket.lock_is_stuck);
  if (lock.outcome() == EndLock::Outcome::kGivenUp) return Incoming::kInvalid;
  const auto result = receiver.leave(reason);
  if (!result) return Incoming::kInvalid;
  return *result == stream::Receiver::LeaveResult::kPlain ? Incoming::kPlain : Incoming::kUnread;
}

// Withdraws the promise permanently, so that no more bytes enter the ring.
void withdraw_for_ever(Socket& socket) {
  if (!socket.has_withdrawn_for_ever.exchange(true)) waits::begin_sleep_always(socket);
}

// Prevents the connection's change over to the stream.  Returns false if the connection has changed
// over already.
bool prevent_change_over(Socket& socket, stream::Reason reason) {
  socket.keep_on_tcp();
  for (;;) {
    auto state = socket.state.load();
    if (state == Socket::State::kOnStream) return false;
    if (state == Socket::State::kTcpOnly) return true;
    if (state == Socket::State::kChangingOver) continue;
    if (!socket.state.compare_exchange_weak(state, Socket::State::kTcpOnly)) continue;
    if (state == Socket::State::kOffered) service_link::forget(socket, reason);
    return true;
  }
}

}  // namespace

bool use_only_tcp(int fd, Socket& socket, stream::Reason reason) {
  const int error = errno;
  bool is_plain = true;
  if (socket.must_use_ring.load(std::memory_order_relaxed)) {
    required::fail(fd, socket, reason);
  } else if (!prevent_change_over(socket, reason)) {
    const bool is_valid = leave_outgoing(fd, socket, reason);
    const Incoming incoming = leave_incoming(socket, reason);
    if (!is_valid || incoming == Incoming::kInvalid) reset(fd);
    is_plain = incoming != Incoming::kUnread;
  }
  errno = error;
  return is_plain;
}

void end_outgoing(int fd, Socket& socket) {
  if (!leave_outgoing(fd, socket, stream::Reason::kEnd)) reset(fd);
}

void end_incoming(Socket& socket) {
  socket.is_read_shut_down.store(true);
  if (socket.uses_stream()) withdraw_for_ever(socket);
}

void receive_by_tcp(int fd, Socket& socket) {
  const int error = errno;
  if (!use_only_tcp(fd, socket, stream::Reason::kOther)) withdraw_for_ever(socket);
  errno = error;
}

std::string drain(int fd, Socket& socket, stream::Reason reason) {
  const int error = errno;
  std::string bytes;
  if (!use_only_tcp(fd, socket, reason)) {
    // While this thread counts as a sleeper, no more bytes enter the ring.  So the loop below can
    // empty the ring.
    waits::begin_sleep_always(socket);
    while (leave_incoming(socket, reason) == Incoming::kUnread) {
      std::array<char, 65536> piece;
      const iovec part{.iov_base = piece.data(), .iov_len = piece.size()};
      const ssize_t n = stream_calls::receive(fd, socket, &part, 1, MSG_DONTWAIT);
      if (n <= 0) break;
      bytes.append(piece.data(), static_cast<std::size_t>(n));
    }
    waits::end_sleep(socket);
  }
  errno = error;
  return bytes;
}

void reset(int fd) {
  const int error = errno;
  // A connect() to the address family AF_UNSPEC resets a connection at once (tcp(7), RFC 9293,
  // ABORT).
  const sockaddr unspecified{.sa_family = AF_UNSPEC, .sa_data = {}};
  os::system_call(SYS_connect, fd, &unspecified, sizeof(unspecified));  // no cancellation point
  // After a reset by the peer, both directions have ended, and poll() reports POLLRDHUP.  The
  // connect() above does not end the directions.  The shutdown() below ends them, although it fails
  // with ENOTCONN.
  os::system_call(SYS_shutdown, fd, SHUT_RDWR);
  errno = error;
}

void wake_peer(stream::Sender& sender) {
  const int error = errno;
  os::system_call(SYS_futex, sender.futex_word(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  errno = error;
}

}  // namespace verbena::preload::leaving
