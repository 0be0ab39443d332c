#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>

#include "preload/change_over.h"
#include "preload/epolls.h"
#include "preload/export.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/own_descriptors.h"
#include "preload/passing.h"
#include "preload/required.h"
#include "preload/service_link.h"
#include "preload/socket_table.h"

// Defines the functions that create, copy and close descriptors of connections.
namespace verbena::preload {
namespace {

bool is_tcp(int fd) {
  int protocol = 0;
  socklen_t bytes = sizeof(protocol);
  return next().getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) == 0 &&
         protocol == IPPROTO_TCP;
}

// Offers a new connection at once to the service, if its peer may wait for the offer.
void offer_at_once(int fd) {
  const auto socket = SocketTable::find(fd);
  if (!socket) return;
  if (change_over::has_first_call_wait()) change_over::advance_at_once(fd, *socket);
  required::offer(fd, *socket);
}

// Begins to track a connection that the program has made (then `peer` is its address) or accepted.
void track(int fd, const sockaddr* peer = nullptr, socklen_t bytes = 0) {
  const int error = errno;
  const policy::Choice choice =
      is_tcp(fd) ? required::choose(fd, peer, bytes) : policy::Choice::kTcp;
  if (choice != policy::Choice::kTcp) {
    if (Socket* socket = SocketTable::add(fd)) {
      socket->nonblocking.store((next().fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
      epolls::on_tracked(fd, *socket);
      socket->must_use_ring.store(choice == policy::Choice::kRing);
    }
    service_link::start();
    offer_at_once(fd);
  }
  errno = error;
}

using change_over::forget;

void forget_range(unsigned first, unsigned last) {
  const int highest = static_cast<int>(std::min<unsigned>(last, INT_MAX));
  if (first > static_cast<unsigned>(highest)) return;
  for (int fd = static_cast<int>(first); fd <= std::min(highest, epolls::highest_descriptor());
       ++fd) {
    epolls::on_close(fd);
  }
  SocketTable::for_each_descriptor(static_cast<int>(first), highest, forget);
}

// Records that the descriptor `to` is a copy of `from`.  If `to` is the standard input, output or
// error, the connection goes back to TCP, because the C library uses these descriptors by calls
// that this library does not wrap.  Unread bytes stay in the ring for read(), or for the program
// after exec().
void after_copy(int from, int to) {
  if (to < 0) return;
  epolls::on_copy(from, to);
  const auto socket = SocketTable::find(from);
  if (!socket) return;
  SocketTable::add_copy(*socket, to);
  if (to <= STDERR_FILENO) (void)leaving::use_only_tcp(to, *socket, stream::Reason::kOther);
}

// Closes a range of descriptors, except for this library's own descriptors.
int close_range_around_own(unsigned first, unsigned last, int flags) {
  for (unsigned fd = first; fd <= std::min<unsigned>(last, kDescriptorsMax); ++fd) {
    if (!own_descriptors::contains(static_cast<int>(fd))) continue;
    if (fd > first && next().close_range(first, fd - 1, flags) != 0) return -1;
    if (fd == last) return 0;
    first = fd + 1;
  }
  return next().close_range(first, last, flags);
}

}  // namespace
}  // namespace verbena::preload

using verbena::preload::next;
using verbena::preload::SocketTable;
namespace leaving = verbena::preload::leaving;
namespace preload = verbena::preload;
namespace own_descriptors = verbena::preload::own_descriptors;

VB_EXPORT int connect(int fd, const sockaddr* peer, socklen_t bytes) {
  const int result = next().connect(fd, peer, bytes);
  if (peer == nullptr || bytes < sizeof(sa_family_t)) return result;
  // A connect() to AF_UNSPEC has ended the connection.  The program may connect the descriptor
  // again.
  if (result == 0 && peer->sa_family == AF_UNSPEC && SocketTable::has(fd)) {
    preload::change_over::after_disconnect(fd);
  }
  if (peer->sa_family != AF_INET && peer->sa_family != AF_INET6) return result;
  // The descriptor may be tracked already, because a program may call connect() again to find out
  // whether its first call has succeeded.
  if ((result == 0 || errno == EINPROGRESS || errno == EINTR) && !SocketTable::has(fd)) {
    preload::track(fd, peer, bytes);
  }
  return result;
}

VB_EXPORT int accept4(int fd, sockaddr* from, socklen_t* bytes, int flags) {
  const int accepted = next().accept4(fd, from, bytes, flags);
  if (accepted >= 0) preload::track(accepted);
  return accepted;
}

VB_EXPORT int accept(int fd, sockaddr* from, socklen_t* bytes) {
  const int accepted = next().accept(fd, from, bytes);
  if (accepted >= 0) preload::track(accepted);
  return accepted;
}

VB_EXPORT int close(int fd) {
  if (own_descriptors::contains(fd)) {
    errno = EBADF;
    return -1;
  }
  preload::forget(fd);
  return next().close(fd);
}

VB_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
  if ((static_cast<unsigned>(flags) & CLOSE_RANGE_CLOEXEC) == 0 && first <= last)
    preload::forget_range(first, last);
  return preload::close_range_around_own(first, last, flags);
}

VB_EXPORT void closefrom(int first) noexcept {
  close_range(static_cast<unsigned>(std::max(first, 0)), ~0U, 0);
}

VB_EXPORT int dup(int fd) noexcept {
  const int copy = next().dup(fd);
  preload::after_copy(fd, copy);
  return copy;
}

VB_EXPORT int dup3(int fd, int to, int flags) noexcept {
  if (own_descriptors::contains(to)) {
    errno = EBADF;
    return -1;
  }
  const bool is_valid = fd != to && (flags & ~O_CLOEXEC) == 0 && next().fcntl(fd, F_GETFD) >= 0;
  if (is_valid) preload::forget(to);
  const int copy = next().dup3(fd, to, flags);
  if (fd != to) preload::after_copy(fd, copy);
  return copy;
}

VB_EXPORT int dup2(int fd, int to) noexcept {
  if (fd == to) return next().dup2(fd, to);
  return dup3(fd, to, 0);
}

namespace {

int call_fcntl(int (*call)(int, int, ...), int fd, int command, void* argument) {
  const int result = call(fd, command, argument);
  if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && result >= 0) {
    preload::after_copy(fd, result);
  } else if (command == F_SETFL && result == 0 && SocketTable::has(fd)) {
    if (const auto socket = SocketTable::find(fd)) {
      const auto flags = reinterpret_cast<std::intptr_t>(argument);
      socket->nonblocking.store((flags & O_NONBLOCK) != 0);
      // The kernel sends no SIGIO for bytes in a ring, so they must come by TCP.
      if ((flags & O_ASYNC) != 0) leaving::receive_by_tcp(fd, *socket);
    }
  }
  return result;
}

}  // namespace

VB_EXPORT int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return call_fcntl(next().fcntl, fd, command, argument);
}

VB_EXPORT int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return call_fcntl(next().fcntl64, fd, command, argument);
}

VB_EXPORT int pidfd_getfd(int process, int fd, unsigned flags) noexcept {
  const auto copy = static_cast<int>(next().syscall(SYS_pidfd_getfd, process, fd, flags));
  if (copy >= 0) preload::passing::on_copied(copy);
  return copy;
}
