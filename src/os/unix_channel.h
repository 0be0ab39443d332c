#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "os/fd.h"

// Carries messages with descriptors between a program and its agent: AF_UNIX SOCK_SEQPACKET on an
// abstract name.  The name belongs to the network namespace, and disappears when its socket is
// closed.
namespace verbena::os {

inline constexpr std::size_t kMessageBytesMax = std::size_t{64} * 1024;
inline constexpr std::size_t kMessageFdsMax = 8;

// This deadline means "do not wait".
inline constexpr Time kNoWait{};

// Describes the process that made the other end, as the kernel recorded it at connect or listen.
struct Peer {
  pid_t pid = 0;  // 0: not visible in our PID namespace
  uid_t uid = 0;
  gid_t gid = 0;
};

// Owns one end of a connection.  Several threads may send and receive at once, and the messages of
// several senders never mix.  Every wait has a deadline, and continues after EINTR.
class UnixChannel {
 public:
  UnixChannel() = default;

  // Connects to the socket of this name.  kUnreachable: nobody listens on that name.  kTimedOut:
  // the backlog stayed full.  kPermission: the backlog is full, and the listener belongs neither to
  // this user nor to root, so it is not worth the wait.
  static Result<UnixChannel> connect(std::string_view name, Time deadline);
  // Makes two connected ends, for tests and embedded use.
  static Result<std::pair<UnixChannel, UnixChannel>> pair();
  // Takes a connected SOCK_SEQPACKET socket.
  static UnixChannel adopt(Fd fd);

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }
  // Ends the connection for every holder of a copy of this end (a forked child, a wrongly passed
  // descriptor), and wakes threads that receive on it.
  void shut_down();

  // Sends one message, 1 to kMessageBytesMax bytes, with copies of the descriptors.  would_block():
  // the queue is full, and the deadline is kNoWait.  kTimedOut: the queue was full until the
  // deadline.  kDeviceFatal: the peer has closed its end.
  Result<void> send(std::span<const std::byte> message, std::span<const int> fds = {},
                    Time deadline = kNoWait);

  // Receives one message into `out` and its descriptors into `fds` (cleared first).  Returns the
  // message's size, or 0 if the peer has closed.  would_block() and kTimedOut mean the same as for
  // send().  kMalformed: the message was longer than `out`, had more descriptors than
  // kMessageFdsMax, or this process could not open its descriptors (RLIMIT_NOFILE).  Then the
  // message and its descriptors are lost.  If `fds_lost` is given, a problem with the descriptors
  // is not an error: the message is returned without descriptors, and *fds_lost is true.
  Result<std::size_t> receive(std::span<std::byte> out, std::vector<Fd>& fds,
                              Time deadline = kNoWait, bool* fds_lost = nullptr);

  Result<Peer> peer() const;
  // Fails with kPermission unless user `uid` made the other end.  Any user can take an abstract
  // name, so a program checks for its own uid, or for 0 if it uses the agent that serves all users.
  Result<void> check_peer_uid(uid_t uid) const;
  // Opens a descriptor that becomes readable when the process that connected ends.  Uses
  // SO_PEERPIDFD if the kernel has it.  Otherwise, opens the process by its pid, and checks that it
  // started before the connection.  kAddressNotFound: the process has ended.
  Result<Fd> peer_pidfd() const;

 private:
  friend class UnixListener;
  UnixChannel(Fd fd, std::uint64_t boot_ns) : fd_(std::move(fd)), connected_boot_ns_(boot_ns) {}

  Fd fd_;
  std::uint64_t connected_boot_ns_ = 0;  // CLOCK_BOOTTIME
};

// Describes the process that listens on the name that the channel was connected to: "pid 12 (nc) of
// another user (uid 1000)".
std::string describe_name_owner(const UnixChannel& channel);

class UnixListener {
 public:
  // Listens on this name.  kAddressInUse: another socket has the name.
  static Result<UnixListener> listen(std::string_view name);

  int fd() const { return fd_.get(); }
  // Accepts the next connection.  If there is none: would_block() for kNoWait, else kTimedOut at
  // the deadline.
  Result<UnixChannel> accept(Time deadline = kNoWait);

 private:
  explicit UnixListener(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace verbena::os
