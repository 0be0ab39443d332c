#include "preload/stream_calls.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "os/clock.h"
#include "preload/end_lock.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/processor.h"
#include "preload/stream_parts.h"

namespace verbena::preload::stream_calls {
namespace {

// Holds the state of one call that sends.
class Send {
 public:
  Send(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags)
      : fd_(fd),
        socket_(socket),
        sender_(socket.sender()),
        lock_(socket.end->send_lock, socket.lock_is_stuck),
        cursor_(parts, count),
        // With MSG_MORE, TCP could delay bytes while later bytes go by the ring.
        flags_(flags & ~(MSG_DONTWAIT | MSG_MORE)),
        blocks_(may_block(fd, socket, flags)) {}

  ssize_t run() {
    if (const auto result = check_lock()) return *result;
    if (const int error = socket_.take_error()) return failed(error);
    // A call without bytes goes to the kernel, which knows whether the program may still send.
    if (cursor_.at_end()) return kernel_call(next().sendmsg, fd_, cursor_, flags_);
    check_peer();
    while (!cursor_.at_end()) {
      auto step = sender_.write(cursor_.part(), stream::Sender::Depth::kCached);
      if (step && step->kind == stream::WriteStep::Kind::kFull) step = write_when_full();
      if (!step) return reset(fd_);
      switch (step->kind) {
        case stream::WriteStep::Kind::kCopied:
          if (step->wake) leaving::wake_peer(sender_);
          cursor_.advance(step->bytes);
          continue;
        case stream::WriteStep::Kind::kTcp:
          if (const auto result = send_by_tcp()) return *result;
          continue;
        case stream::WriteStep::Kind::kFull: continue;
        case stream::WriteStep::Kind::kPlain: break;
      }
      lock_.unlock();
      return send_by_plain_tcp();
    }
    return done();
  }

 private:
  // Returns nothing if this thread has the lock, and otherwise the result of the program's call.
  std::optional<ssize_t> check_lock() {
    switch (lock_.outcome()) {
      case EndLock::Outcome::kTaken: return std::nullopt;
      case EndLock::Outcome::kNotTaken: return end_with_error(EINTR);
      case EndLock::Outcome::kGivenUp: return reset(fd_);
      case EndLock::Outcome::kOwnerDied: break;
    }
    if (!sender_.recover()) return reset(fd_);
    return std::nullopt;
  }

  // Sends the remaining bytes in calls of at most kPartsMax parts, until a call sends fewer bytes
  // than requested.
  ssize_t send_by_plain_tcp() {
    while (!cursor_.at_end()) {
      const int no_signal = cursor_.done() > 0 ? MSG_NOSIGNAL : 0;
      const std::size_t wanted = cursor_.bytes_of_parts(kPartsMax);
      const ssize_t n = kernel_call(next().sendmsg, fd_, cursor_,
                                    flags_ | no_signal | (blocks_ ? 0 : MSG_DONTWAIT));
      if (n < 0) return end_with_error(errno);
      cursor_.advance(static_cast<std::size_t>(n));
      if (static_cast<std::size_t>(n) < wanted) break;
    }
    return done();
  }
  ssize_t done() const { return static_cast<ssize_t>(cursor_.done()); }

  // Returns the result of the call after an error.  If the call has sent bytes before the error,
  // returns their number; then the next call reports the error, unless the kernel reports it again.
  ssize_t end_with_error(int error) {
    if (cursor_.done() == 0) return failed(error);
    if (error != EAGAIN && error != EINTR && error != EPIPE) socket_.pending_error.store(error);
    return done();
  }

  // Checks that the peer still lives, because the promise of a killed peer stays in the memory.  If
  // bytes are unread, polls the kernel from time to time.  If the peer has ended, goes back to TCP,
  // so that the kernel returns the right error.  If no bytes are unread, records the time at which
  // the next bytes are sent.
  void check_peer() {
    constexpr std::int64_t kCheckPeerEvery = 1'000'000;  // nanoseconds
    if (sender_.has_left()) return;
    if (sender_.unread() == 0) return sender_.set_unread_since(processor::ticks());
    const std::int64_t now = os::now().time_since_epoch().count();
    const std::int64_t before = socket_.peer_checked_at.load(std::memory_order_relaxed);
    if (now - before < kCheckPeerEvery) return;
    socket_.peer_checked_at.store(now, std::memory_order_relaxed);
    pollfd one{.fd = fd_, .events = POLLRDHUP, .revents = 0};
    const timespec at_once{};
    if (next().ppoll(&one, 1, &at_once, nullptr) > 0) {
      // If the memory holds invalid values, the next write() reports an error.
      (void)sender_.leave(stream::Reason::kOther).has_value();
      leaving::restore_delay_options(fd_, socket_);
    }
  }

  // Writes after write() has found the ring full to Depth::kCached.  If the receiver reads nothing
  // for a moment, it probably waits for CPU time.  Then the sender uses the whole ring, so that
  // fewer bytes have to go by TCP.
  Result<stream::WriteStep> write_when_full() {
    using Depth = stream::Sender::Depth;
    const std::size_t unread = sender_.unread();
    const bool peer_reads = processor::spin_short([&] { return sender_.unread() < unread; });
    auto step = sender_.write(cursor_.part(), peer_reads ? Depth::kCached : Depth::kWhole);
    if (step && step->kind == stream::WriteStep::Kind::kFull) {
      return sender_.write_by_tcp(cursor_.part().size());
    }
    return step;
  }

  // Does a step kTcp.  Returns the result of the program's call, or nothing to continue.  Sends
  // several parts by one call of the kernel.  So if the peer resets the connection because of the
  // first part, the program sees the same as with TCP alone.
  std::optional<ssize_t> send_by_tcp() {
    const int no_signal = cursor_.done() > 0 ? MSG_NOSIGNAL : 0;
    const ssize_t n = kernel_call(next().sendmsg, fd_, cursor_, flags_ | MSG_DONTWAIT | no_signal,
                                  stream::Sender::kTcpBytesMax);
    const int error = errno;
    if (sender_.sent(n > 0 ? static_cast<std::size_t>(n) : 0)) leaving::wake_peer(sender_);
    if (n > 0) {
      cursor_.advance(static_cast<std::size_t>(n));
      return std::nullopt;
    }
    if (error != EAGAIN || !blocks_) return end_with_error(error);
    lock_.unlock();
    if (!wait_in_kernel(fd_, POLLOUT, SO_SNDTIMEO)) {
      return cursor_.done() > 0 ? done() : failed(errno);
    }
    // After an error, first returns the number of bytes that were sent.  The error stays in the
    // kernel, so that poll() and SO_ERROR report it.
    if (cursor_.done() > 0 && has_error(fd_)) return done();
    lock_.lock_again();
    return check_lock();
  }

  int fd_;
  Socket& socket_;
  stream::Sender sender_;
  EndLock lock_;
  Cursor cursor_;
  int flags_;
  bool blocks_;
};

}  // namespace

ssize_t send(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags) {
  return Send(fd, socket, parts, count, flags).run();
}

ssize_t send_file(int fd, Socket& socket, int file, off_t* offset, std::size_t count) {
  std::array<std::byte, 32768> piece;
  std::size_t done = 0;
  off_t at = offset != nullptr ? *offset : ::lseek(file, 0, SEEK_CUR);
  if (at < 0) return offset != nullptr || errno == ESPIPE ? failed(EINVAL) : -1;
  ssize_t result = 0;
  while (done < count) {
    const ssize_t read = ::pread(file, piece.data(), std::min(piece.size(), count - done), at);
    if (read <= 0) {
      result = read;
      break;
    }
    const iovec part{.iov_base = piece.data(), .iov_len = static_cast<std::size_t>(read)};
    result = send(fd, socket, &part, 1, 0);
    if (result <= 0) break;
    at += result;
    done += static_cast<std::size_t>(result);
    if (result < read) break;
  }
  if (offset != nullptr) {
    *offset = at;
  } else {
    ::lseek(file, at, SEEK_SET);
  }
  return done > 0 ? static_cast<ssize_t>(done) : result;
}

ssize_t splice(int fd, Socket& socket, int pipe, std::size_t count, unsigned flags) {
  // A pipe that poll() reports as writable has space for a page.
  std::array<std::byte, 4096> page;
  if ((flags & SPLICE_F_NONBLOCK) != 0) {
    pollfd one{.fd = pipe, .events = POLLOUT, .revents = 0};
    const timespec at_once{};
    if (next().ppoll(&one, 1, &at_once, nullptr) == 0) return failed(EAGAIN);
  }
  // First peeks at the bytes, and removes them from the stream only after they are in the pipe.
  iovec part{.iov_base = page.data(), .iov_len = std::min(count, page.size())};
  const ssize_t peeked = receive(fd, socket, &part, 1, MSG_PEEK | MSG_DONTWAIT);
  if (peeked <= 0) return peeked;
  const ssize_t written = next().write(pipe, page.data(), static_cast<std::size_t>(peeked));
  if (written <= 0) return written;
  part.iov_len = static_cast<std::size_t>(written);
  return receive(fd, socket, &part, 1, MSG_WAITALL);
}

}  // namespace verbena::preload::stream_calls
