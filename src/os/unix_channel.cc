#include "os/unix_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/printable.h"
#include "os/clock.h"
#include "os/process.h"
#include "os/socket_owner.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

constexpr int kPeerPidfd = 77;            // SO_PEERPIDFD, Linux 6.5
constexpr int kBufferBytes = 512 * 1024;  // several of the largest messages
// This is SCM_MAX_FD, the most descriptors that the kernel passes in one message.  The buffer has
// space for all of them, so the kernel never drops a descriptor, and we can close the descriptors
// that we refuse.
constexpr std::size_t kKernelFdsMax = 253;

struct Address {
  sockaddr_un un{};
  socklen_t bytes = 0;
};

Result<Address> abstract_address(std::string_view name) {
  Address address;
  if (name.empty() || name.size() >= sizeof(address.un.sun_path)) {
    return fail(Errc::kInvalidArgument, "the name of a socket has 1 to 107 bytes");
  }
  address.un.sun_family = AF_UNIX;
  // Byte 0 of the path remains 0, which makes the name abstract.
  std::memcpy(address.un.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Fd> open_socket() {
  // Makes a raw system call, because Fd::reset() also closes the socket by a raw system call.
  // ThreadSanitizer must see both calls or neither.
  const long raw = system_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  Fd fd = VB_TRY(take_fd(static_cast<int>(raw), "cannot make a socket"));
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
  return fd;
}

std::uint64_t boot_clock_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(t.tv_nsec);
}

// Returns the time until the deadline, for SO_SNDTIMEO.  It is never 0, which would mean "wait
// forever", unless the deadline is kNever.
timeval time_left(Time deadline) {
  constexpr std::int64_t kMicrosecondsPerSecond = 1'000'000;
  if (deadline == kNever) return {.tv_sec = 0, .tv_usec = 0};
  const std::int64_t us = std::max<std::int64_t>(1, (deadline - now()).count() / 1000);
  return {.tv_sec = us / kMicrosecondsPerSecond, .tv_usec = us % kMicrosecondsPerSecond};
}

// Waits after EAGAIN until another try may succeed.
Result<void> wait_after_eagain(int fd, short events, Time deadline) {
  if (deadline == kNoWait) return system_error(EAGAIN, "would have to wait");
  if (VB_TRY(wait_for(fd, events, deadline)) == 0)
    return fail(Errc::kTimedOut, "no message in time");
  return {};
}

bool is_disconnect_error(int error_number) {
  return error_number == EPIPE || error_number == ECONNRESET || error_number == ENOTCONN;
}

// Moves the descriptors of a received message into owners.  Returns false if there are more than
// kMessageFdsMax, or if one cannot be received.  REQUIRES: `fds` has the capacity for
// kMessageFdsMax, so that no allocation throws while a descriptor has no owner.
bool take_descriptors(msghdr& message, std::vector<Fd>& fds) {
  bool took_all = true;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      auto fd = take_fd(raw, "cannot keep a received descriptor");
      took_all = took_all && fd.has_value() && fds.size() < kMessageFdsMax;
      if (took_all) fds.push_back(std::move(*fd));
    }
  }
  return took_all;
}

}  // namespace

// ---- connections -----------------------------------------------------------------------------

Result<UnixChannel> UnixChannel::connect(std::string_view name, Time deadline) {
  const Address address = VB_TRY(abstract_address(name));
  Fd fd = VB_TRY(open_socket());
  VB_TRY_VOID(set_nonblocking(fd.get(), true));
  for (bool may_wait = false;;) {
    const timeval time_limit = time_left(deadline);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &time_limit, sizeof(time_limit));
    if (system_call(SYS_connect, fd.get(), &address.un, address.bytes) == 0) break;
    if (errno == EINTR) continue;
    if (errno == EAGAIN && !std::exchange(may_wait, true)) {
      const auto owner = find_name_owner(name);
      if (owner && is_stranger(*owner)) {
        return fail(Errc::kPermission, "another user has taken the name, and accepts nobody");
      }
      VB_TRY_VOID(set_nonblocking(fd.get(), false));
      continue;
    }
    if (errno == EAGAIN) return fail(Errc::kTimedOut, "the listener does not accept connections");
    if (errno == ECONNREFUSED)
      return fail(Errc::kUnreachable, "no process listens on this name", ECONNREFUSED);
    return system_error(errno, "cannot connect to a local socket");
  }
  return UnixChannel(std::move(fd), boot_clock_ns());
}

Result<std::pair<UnixChannel, UnixChannel>> UnixChannel::pair() {
  int fds[2] = {-1, -1};
  if (system_call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return system_error(errno, "cannot make a pair of sockets");
  }
  auto first = take_fd(fds[0], "cannot make a pair of sockets");
  auto second = take_fd(fds[1], "cannot make a pair of sockets");
  return std::pair(adopt(VB_TRY(std::move(first))), adopt(VB_TRY(std::move(second))));
}

UnixChannel UnixChannel::adopt(Fd fd) { return {std::move(fd), boot_clock_ns()}; }

void UnixChannel::shut_down() { ::shutdown(fd_.get(), SHUT_RDWR); }

Result<UnixListener> UnixListener::listen(std::string_view name) {
  const Address address = VB_TRY(abstract_address(name));
  Fd fd = VB_TRY(open_socket());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.un), address.bytes) != 0) {
    if (errno == EADDRINUSE) return fail(Errc::kAddressInUse, "the socket's name is in use");
    return system_error(errno, "cannot bind a local socket");
  }
  if (::listen(fd.get(), SOMAXCONN) != 0) return system_error(errno, "listen");
  VB_TRY_VOID(set_nonblocking(fd.get(), true));
  return UnixListener(std::move(fd));
}

Result<UnixChannel> UnixListener::accept(Time deadline) {
  for (;;) {
    const long raw = repeat_call(SYS_accept4, fd_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (raw >= 0) {
      Fd fd = VB_TRY(take_fd(static_cast<int>(raw), "accept"));
      ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
      return UnixChannel(std::move(fd), boot_clock_ns());
    }
    if (errno == ECONNABORTED) continue;
    if (errno != EAGAIN) return system_error(errno, "accept");
    VB_TRY_VOID(wait_after_eagain(fd_.get(), POLLIN, deadline));
  }
}

// ---- messages --------------------------------------------------------------------------------

Result<void> UnixChannel::send(std::span<const std::byte> message, std::span<const int> fds,
                               Time deadline) {
  if (message.empty() || message.size() > kMessageBytesMax || fds.size() > kMessageFdsMax) {
    return fail(Errc::kInvalidArgument,
                "the message is empty, too long, or has too many descriptors");
  }
  iovec vector{.iov_base = const_cast<std::byte*>(message.data()), .iov_len = message.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMessageFdsMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const long n = repeat_call(SYS_sendmsg, fd_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) return {};
    if (is_disconnect_error(errno))
      return fail(Errc::kDeviceFatal, "the other end has closed the connection");
    if (errno != EAGAIN) return system_error(errno, "sendmsg");
    VB_TRY_VOID(wait_after_eagain(fd_.get(), POLLOUT, deadline));
  }
}

Result<std::size_t> UnixChannel::receive(std::span<std::byte> out, std::vector<Fd>& fds,
                                         Time deadline, bool* fds_lost) {
  fds.clear();
  fds.reserve(kMessageFdsMax);
  iovec vector{.iov_base = out.data(), .iov_len = out.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kKernelFdsMax * sizeof(int))> control;
  bool was_reset = false;
  for (;;) {
    msghdr header{};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const long n = repeat_call(SYS_recvmsg, fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n >= 0) {
      const bool all_fds = take_descriptors(header, fds) && (header.msg_flags & MSG_CTRUNC) == 0;
      if (!all_fds) fds.clear();
      if (fds_lost != nullptr) *fds_lost = !all_fds;
      const bool is_whole = (header.msg_flags & MSG_TRUNC) == 0;
      if (is_whole && (all_fds || fds_lost != nullptr)) return static_cast<std::size_t>(n);
      fds.clear();
      return fail(Errc::kMalformed,
                  "the message is too long, or its descriptors cannot be received");
    }
    // The kernel reports ECONNRESET once if the peer has closed without reading everything.  After
    // this error, the messages that the peer has sent can still be received.
    if (errno == ECONNRESET && !std::exchange(was_reset, true)) continue;
    if (is_disconnect_error(errno)) return std::size_t{0};
    if (errno != EAGAIN) return system_error(errno, "recvmsg");
    VB_TRY_VOID(wait_after_eagain(fd_.get(), POLLIN, deadline));
  }
}

// ---- the peer --------------------------------------------------------------------------------

Result<Peer> UnixChannel::peer() const {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return system_error(errno, "SO_PEERCRED");
  }
  return Peer{.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
}

Result<void> UnixChannel::check_peer_uid(uid_t uid) const {
  if (VB_TRY(peer()).uid != uid) {
    return fail(Errc::kPermission, "the other end belongs to another user");
  }
  return {};
}

std::string describe_name_owner(const UnixChannel& channel) {
  const auto peer_process = channel.peer();
  if (!peer_process) return "another process";
  std::string text = "a process that is not visible here";
  if (peer_process->pid != 0) {
    text = "pid " + std::to_string(peer_process->pid) + " (" +
           printable_name(process_name(peer_process->pid)) + ")";
  }
  return text + " of another user (uid " + std::to_string(peer_process->uid) + ")";
}

Result<Fd> UnixChannel::peer_pidfd() const {
  int raw = -1;
  socklen_t bytes = sizeof(raw);
  if (::getsockopt(fd_.get(), SOL_SOCKET, kPeerPidfd, &raw, &bytes) == 0) {
    return take_fd(raw, "SO_PEERPIDFD");
  }
  if (errno != ENOPROTOOPT) {
    if (errno == ESRCH || errno == EINVAL || errno == ENODATA) {
      return fail(Errc::kAddressNotFound, "the process at the other end has ended");
    }
    return system_error(errno, "SO_PEERPIDFD");
  }
  const Peer peer_process = VB_TRY(peer());
  Fd pidfd = VB_TRY(open_pidfd(peer_process.pid));
  // Another process may have got the pid since then.  Such a process started after the connection.
  const std::uint64_t ticks = VB_TRY(process_start_time(peer_process.pid));
  const auto tick_ns = 1'000'000'000 / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  if (ticks * tick_ns > connected_boot_ns_) {
    return fail(Errc::kAddressNotFound, "the process at the other end has ended");
  }
  return pidfd;
}

}  // namespace verbena::os
