#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>

#include "preload/change_over.h"
#include "preload/export.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/passing.h"
#include "preload/required.h"
#include "preload/socket_table.h"

// Defines functions that query or change a connection, such as getsockopt(), ioctl() and
// shutdown().  They handle the cases in which the result depends on the stream.

using verbena::preload::next;
using verbena::preload::SocketTable;
namespace leaving = verbena::preload::leaving;
namespace preload = verbena::preload;

namespace {

// Returns the emulated value of a socket option.  Returns nothing if this library does not emulate
// the option, or if the sender has gone back to TCP.
std::optional<preload::EmulatedOption> emulated_option(preload::Socket& socket, int level,
                                                       int option) {
  if (socket.sender().has_left()) return std::nullopt;
  return socket.emulated_option(level, option);
}

// Returns true if the option makes the kernel process the connection's bytes in a way that the
// stream cannot support: kTLS (TCP_ULP), or receiving by mapping the kernel's pages
// (TCP_ZEROCOPY_RECEIVE).  Returns false if the connection will never use the stream.
bool bypasses_stream(const verbena::preload::Socket& socket, int level, int option) {
  return level == IPPROTO_TCP && (option == TCP_ULP || option == TCP_ZEROCOPY_RECEIVE) &&
         socket.state.load() != verbena::preload::Socket::State::kTcpOnly;
}

// Returns true if the peers of a listener may wait for the ring before they send.  With
// TCP_DEFER_ACCEPT, the kernel would wait for the first bytes before it reports a connection to the
// listener.  Then both sides would wait for each other.
bool peers_may_wait_for_ring() {
  return preload::required::has_rules() || preload::change_over::has_first_call_wait();
}

}  // namespace

VB_EXPORT int getsockopt(int fd, int level, int option, void* value, socklen_t* bytes) noexcept {
  if (level == IPPROTO_TCP && option == TCP_ZEROCOPY_RECEIVE) {
    const auto socket = SocketTable::find(fd);
    if (socket && bypasses_stream(*socket, level, option)) {
      errno = ENOPROTOOPT;  // the error of a kernel that does not know the option
      return -1;
    }
  }
  const int result = next().getsockopt(fd, level, option, value, bytes);
  const bool is_error = level == SOL_SOCKET && option == SO_ERROR;
  if (result != 0 || (level != IPPROTO_TCP && !is_error) || *bytes < sizeof(int)) return result;
  const auto socket = SocketTable::find(fd);
  if (!socket || !socket->uses_stream()) return result;
  if (is_error) {
    if (const int pending = socket->take_error()) {
      memcpy(value, &pending, sizeof(pending));
    }
    return result;
  }
  if (const auto emulated = emulated_option(*socket, level, option)) {
    const int number = emulated->load() ? 1 : 0;
    memcpy(value, &number, sizeof(number));
  } else if (option == TCP_USER_TIMEOUT) {
    if (const auto timeout = preload::passing::hidden_user_timeout(*socket)) {
      const std::uint32_t number = timeout->load();
      memcpy(value, &number, sizeof(number));
    }
  }
  return result;
}

VB_EXPORT int setsockopt(int fd, int level, int option, const void* value,
                         socklen_t bytes) noexcept {
  if (level == IPPROTO_TCP && option == TCP_DEFER_ACCEPT && peers_may_wait_for_ring()) {
    const int off = 0;
    return next().setsockopt(fd, level, option, &off, sizeof(off));
  }
  const auto socket = SocketTable::find(fd);
  if (socket && bypasses_stream(*socket, level, option)) {
    errno = ENOENT;  // the error of a kernel without kTLS
    return -1;
  }
  if (!socket || value == nullptr || bytes < sizeof(int)) {
    return next().setsockopt(fd, level, option, value, bytes);
  }
  int number = 0;
  memcpy(&number, value, sizeof(number));
  if (socket->uses_stream()) {
    if (const auto emulated = emulated_option(*socket, level, option)) {
      emulated->store(number != 0);
      return 0;
    }
    if (level == IPPROTO_TCP && option == TCP_USER_TIMEOUT && number >= 0) {
      if (const auto timeout = preload::passing::hidden_user_timeout(*socket)) {
        timeout->store(static_cast<std::uint32_t>(number));
        return 0;
      }
    }
  }
  // The kernel does not count bytes in the ring for this limit, so they must come by TCP.
  if (level == SOL_SOCKET && option == SO_RCVLOWAT && number > 1) {
    leaving::receive_by_tcp(fd, *socket);
  }
  return next().setsockopt(fd, level, option, value, bytes);
}

VB_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const int result = next().ioctl(fd, request, argument);
  if (result != 0 || !SocketTable::has(fd)) return result;
  const auto socket = SocketTable::find(fd);
  if (!socket || argument == nullptr) return result;
  if (request == FIONBIO) {
    socket->nonblocking.store(*static_cast<int*>(argument) != 0);
  } else if (request == FIOASYNC && *static_cast<int*>(argument) != 0) {
    // The kernel sends no SIGIO for bytes in a ring, so they must come by TCP.
    leaving::receive_by_tcp(fd, *socket);
  } else if (request == SIOCATMARK && socket->uses_stream()) {
    // Bytes in the ring are before the urgent mark, but the kernel cannot count them.
    if (socket->receiver().ring_status().bytes > 0) *static_cast<int*>(argument) = 0;
  } else if (request == FIONREAD && socket->uses_stream()) {
    *static_cast<int*>(argument) += static_cast<int>(socket->receiver().ring_status().bytes);
  } else if (request == SIOCOUTQ && socket->uses_stream()) {
    *static_cast<int*>(argument) += static_cast<int>(socket->sender().unread());
  }
  return result;
}

// The C library's function makes the system call without ioctl() above.
VB_EXPORT int sockatmark(int fd) noexcept {
  int is_at_mark = 0;
  return ioctl(fd, SIOCATMARK, &is_at_mark) == -1 ? -1 : is_at_mark;
}

VB_EXPORT int shutdown(int fd, int how) noexcept {
  const auto socket = SocketTable::find(fd);
  if (!socket) return next().shutdown(fd, how);
  if (how == SHUT_RD) {
    const int result = next().shutdown(fd, how);
    if (result == 0) leaving::end_incoming(*socket);
    return result;
  }
  // After shutdown(), no bytes may enter the ring.  If the program still sends, the kernel returns
  // EPIPE.
  if (socket->uses_stream()) leaving::end_outgoing(fd, *socket);
  const int result = next().shutdown(fd, how);
  const int error = errno;
  if (how == SHUT_RDWR && result == 0) leaving::end_incoming(*socket);
  // Another thread may have changed the connection over since the first check.
  if (!socket->uses_stream()) return result;
  leaving::end_outgoing(fd, *socket);
  errno = error;
  verbena::stream::Sender sender = socket->sender();
  if (sender.wake_needed()) leaving::wake_peer(sender);
  return result;
}
