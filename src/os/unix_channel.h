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

// Messages with descriptors between a program and its agent: AF_UNIX SOCK_SEQPACKET on an abstract
// name, which belongs to the network namespace and vanishes with its holder.
namespace verbena::os {

inline constexpr std::size_t kMessageBytesMax = std::size_t{64} * 1024;
inline constexpr std::size_t kMessageFdsMax = 8;

// "Do not wait", where a deadline is wanted.
inline constexpr Time kNoWait{};

// Who made the other end, as the kernel saw it at connect and listen.
struct Peer {
  pid_t pid = 0;  // 0: in a process namespace that we cannot see
  uid_t uid = 0;
  gid_t gid = 0;
};

// One end of a connection.  Sending and receiving may be done by different threads; two senders
// never mix their messages.  All waiting is by deadline, EINTR goes on waiting.
class UnixChannel {
 public:
  UnixChannel() = default;

  // kUnreachable: nobody listens on that name.  kTimedOut: the backlog stayed full.
  static Result<UnixChannel> connect(std::string_view name, Time deadline);
  // Both ends, for tests and embedded use.
  static Result<std::pair<UnixChannel, UnixChannel>> pair();
  // Takes a connected SOCK_SEQPACKET socket.
  static UnixChannel adopt(Fd fd);

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }
  // Ends the connection for every holder of a copy of this end (a forked child, a wrongly passed
  // descriptor), and wakes whoever receives on it.
  void shut_down();

  // Sends one message, 1 to kMessageBytesMax bytes, with copies of the descriptors.
  // would_block(): no room and kNoWait.  kTimedOut: no room until the deadline.
  // kDeviceFatal: the peer is gone.
  Result<void> send(std::span<const std::byte> message, std::span<const int> fds = {},
                    Time deadline = kNoWait);

  // Receives one message into `out` and its descriptors into `fds` (cleared first).  Gives its
  // size; 0: the peer has closed.  would_block() and kTimedOut as above.  kMalformed: the message
  // was longer than `out`, or had more descriptors than kMessageFdsMax; it is gone, with all of its
  // descriptors.  With `fds_lost`, a message that came without its descriptors (this process may
  // have no more) is given, and that is said there.
  Result<std::size_t> receive(std::span<std::byte> out, std::vector<Fd>& fds,
                              Time deadline = kNoWait, bool* fds_lost = nullptr);

  Result<Peer> peer() const;
  // kPermission unless the other end was made by this user.  An abstract name can be taken by
  // anybody: a program asks for its own uid, or for 0 when it wants the system's agent.
  Result<void> check_peer_uid(uid_t wanted) const;
  // Becomes readable when the process that connected ends.  SO_PEERPIDFD where the kernel has it,
  // else by pid, with a check that the process is not younger than the connection.
  // kAddressNotFound: it has ended already.
  Result<Fd> peer_pidfd() const;

 private:
  friend class UnixListener;
  UnixChannel(Fd fd, std::uint64_t boot_ns) : fd_(std::move(fd)), connected_boot_ns_(boot_ns) {}

  Fd fd_;
  std::uint64_t connected_boot_ns_ = 0;  // CLOCK_BOOTTIME
};

// Who listens on the name that the channel was connected to, in words: "pid 12 (nc) of another user
// (uid 1000)".
std::string name_holder(const UnixChannel& channel);

class UnixListener {
 public:
  // kAddressInUse: somebody has the name.
  static Result<UnixListener> listen(std::string_view name);

  int fd() const { return fd_.get(); }
  // The next connection; would_block() if there is none and kNoWait, else kTimedOut.
  Result<UnixChannel> accept(Time deadline = kNoWait);

 private:
  explicit UnixListener(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace verbena::os
