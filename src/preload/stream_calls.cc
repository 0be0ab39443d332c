#include "preload/stream_calls.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <optional>

#include "os/clock.h"
#include "os/system_call.h"
#include "preload/end_lock.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/processor.h"

namespace verbena::preload::stream_calls {
namespace {

using os::system_call;

// Walks over the parts of a message.
class Cursor {
 public:
  Cursor(const iovec* parts, std::size_t count) : parts_(parts), count_(count) { skip_empty(); }

  bool at_end() const { return index_ == count_; }
  // Returns the rest of the current part, at most `most` bytes.
  std::span<std::byte> part(std::size_t most = SSIZE_MAX) const {
    const iovec& now = parts_[index_];
    return {static_cast<std::byte*>(now.iov_base) + offset_, std::min(now.iov_len - offset_, most)};
  }
  void advance(std::size_t bytes) {
    done_ += bytes;
    offset_ += bytes;
    skip_empty();
  }
  std::size_t done() const { return done_; }

  // Copies the rest into `out`, at most as many parts as fit.  Returns their number.
  std::size_t rest(std::span<iovec> out) const {
    std::size_t n = 0;
    for (std::size_t i = index_; i < count_ && n < out.size(); ++i, ++n) out[n] = parts_[i];
    if (n > 0) {
      out[0].iov_base = static_cast<std::byte*>(out[0].iov_base) + offset_;
      out[0].iov_len -= offset_;
    }
    return n;
  }

 private:
  void skip_empty() {
    while (index_ < count_ && offset_ == parts_[index_].iov_len) {
      ++index_;
      offset_ = 0;
    }
  }

  const iovec* parts_;
  std::size_t count_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
  std::size_t done_ = 0;
};

constexpr std::size_t kPartsMax = 64;

// Makes a call of the kernel for the rest of a message: recvmsg() or sendmsg().
template <class Call>
ssize_t kernel_call(Call call, int fd, const Cursor& cursor, int flags) {
  std::array<iovec, kPartsMax> parts;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = cursor.rest(parts);
  return call(fd, &message, flags);
}

bool blocks(int fd, const Socket& socket, int flags) {
  if ((flags & MSG_DONTWAIT) != 0 || socket.nonblocking.load(std::memory_order_relaxed)) {
    return false;
  }
  // Another process that has the socket may have changed it.
  return !socket.is_shared.load(std::memory_order_relaxed) ||
         (system_call(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK) == 0;
}

// Waits until the kernel reports `events`, at most as long as the socket's timeout says.
// Returns false and sets errno if the caller must return.
bool wait_in_kernel(int fd, short events, int timeout_option) {
  timeval limit{};
  socklen_t bytes = sizeof(limit);
  next().getsockopt(fd, SOL_SOCKET, timeout_option, &limit, &bytes);
  const timespec timeout{.tv_sec = limit.tv_sec, .tv_nsec = limit.tv_usec * 1000};
  const bool is_limited = limit.tv_sec != 0 || limit.tv_usec != 0;
  pollfd one{.fd = fd, .events = events, .revents = 0};
  const int ready = next().ppoll(&one, 1, is_limited ? &timeout : nullptr, nullptr);
  if (ready == 0) errno = EAGAIN;
  return ready > 0;
}

// Ends a connection whose memory holds nonsense, for both sides.
ssize_t reset(int fd) {
  leaving::reset(fd);
  errno = ECONNRESET;
  return -1;
}

ssize_t failed(int error) {
  errno = error;
  return -1;
}

// Keeps the promise of a direction withdrawn while this thread may sleep in the kernel, also if the
// thread is cancelled there.
class Withdrawal {
 public:
  explicit Withdrawal(stream::Receiver& receiver) : receiver_(receiver) {}
  Withdrawal(const Withdrawal&) = delete;
  Withdrawal& operator=(const Withdrawal&) = delete;
  ~Withdrawal() { receiver_.promise(); }

 private:
  stream::Receiver& receiver_;
};

// Receives once; the state of one call.
class Receive {
 public:
  Receive(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags)
      : fd_(fd),
        socket_(socket),
        receiver_(socket.receiver()),
        lock_(stream::place_of(socket.memory, 1 - socket.side)->direction->receive_lock),
        to_(parts, count),
        flags_(flags & ~(MSG_WAITALL | MSG_DONTWAIT)),
        peeks_((flags & MSG_PEEK) != 0),
        wants_all_((flags & MSG_WAITALL) != 0 && !peeks_),
        blocks_(blocks(fd, socket, flags)) {}

  ssize_t run() {
    if (lock_.taken() == EndLock::Taken::kOwn) return failed(EINTR);
    if (lock_.taken() == EndLock::Taken::kOwnerDied && !receiver_.recover()) return reset(fd_);
    if (const int error = socket_.pending_error.exchange(0)) return failed(error);
    while (!to_.at_end()) {
      const auto step = receiver_.read(to_.part(), peeks_);
      if (!step) return reset(fd_);
      std::optional<ssize_t> result;
      switch (step->kind) {
        case stream::ReadStep::Kind::kCopied:
          to_.advance(step->bytes);
          if (peeks_) return done();
          continue;
        case stream::ReadStep::Kind::kTcp: result = from_tcp(step->bytes, true); break;
        case stream::ReadStep::Kind::kOpen: result = from_open(*step); break;
        case stream::ReadStep::Kind::kPlain:
          lock_.unlock();
          if (to_.done() > 0) return done();
          return kernel_call(next().recvmsg, fd_, to_, call_flags());
      }
      if (result) return *result;
    }
    return done();
  }

 private:
  ssize_t done() const { return static_cast<ssize_t>(to_.done()); }
  bool may_wait() const { return blocks_ && (to_.done() == 0 || wants_all_); }
  int call_flags() const {
    return flags_ | (blocks_ ? 0 : MSG_DONTWAIT) | (wants_all_ ? MSG_WAITALL : 0);
  }

  // Ends the call with an error, or with the bytes before it; then the next call reports it.
  ssize_t fails_with(int error) {
    if (to_.done() == 0) return failed(error);
    if (error != EAGAIN && error != EINTR) socket_.pending_error.store(error);
    return done();
  }

  // Reads at most `most` bytes from TCP.  If they are of a segment with a known end, they are
  // surely on their way, so the call may wait for them.
  std::optional<ssize_t> from_tcp(std::size_t most, bool is_sure) {
    const auto room = to_.part(most);
    const ssize_t n = next().recv(fd_, room.data(), room.size(), flags_ | MSG_DONTWAIT);
    const int error = errno;
    receiver_.received(n > 0 && !peeks_ ? static_cast<std::size_t>(n) : 0);
    if (n > 0) {
      to_.advance(static_cast<std::size_t>(n));
      if (peeks_) return done();
      return std::nullopt;
    }
    if (n == 0) {
      const auto is_end = receiver_.ended();
      if (!is_end) return reset(fd_);
      if (*is_end) return done();
      return std::nullopt;
    }
    if (error == EAGAIN && is_sure && !may_wait() && to_.done() == 0 && !has_awaited_) {
      return await_delivery();
    }
    if (error != EAGAIN || !may_wait()) return fails_with(error);
    if (!is_sure) return std::nullopt;
    lock_.unlock();
    if (!wait_in_kernel(fd_, POLLIN, SO_RCVTIMEO)) return fails_with(errno);
    return again();
  }

  // The kernel delivers what TCP has accepted within microseconds, but epoll may have reported the
  // bytes in the ring behind it already.  So a call that does not block waits for the delivery.
  std::optional<ssize_t> await_delivery() {
    constexpr timespec kDelivery{.tv_sec = 0, .tv_nsec = 20'000'000};
    has_awaited_ = true;
    lock_.unlock();
    pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
    next().ppoll(&one, 1, &kDelivery, nullptr);
    return again();
  }

  // The ring is empty.  TCP may have bytes, an end, or nothing.
  std::optional<ssize_t> from_open(const stream::ReadStep& step) {
    const bool may_wait = this->may_wait();
    if (!step.only_end || kernel_has_news_ || (to_.done() == 0 && !may_wait)) {
      kernel_has_news_ = false;
      if (const auto result = look_at_tcp(step)) {
        if (*result == kGoOn) return std::nullopt;
        return result;
      }
    }
    if (!may_wait) return to_.done() > 0 ? done() : failed(EAGAIN);
    if (!has_spun_ && spin_for_bytes()) return std::nullopt;
    if (lock_.taken() == EndLock::Taken::kOwn) return fails_with(EINTR);
    return sleep_in_kernel(step.seen);
  }

  // Takes what TCP has without giving up the promise.  Returns nothing if TCP has nothing.
  std::optional<ssize_t> look_at_tcp(const stream::ReadStep& step) {
    int queued = 0;
    if (!step.only_end) system_call(SYS_ioctl, fd_, FIONREAD, &queued);
    if (queued > 0) {
      const auto bound = receiver_.queued_bound(static_cast<std::size_t>(queued));
      if (!bound) return reset(fd_);
      if (*bound == 0) return kGoOn;
      const auto result = from_tcp(*bound, false);
      return result ? *result : kGoOn;
    }
    std::byte ahead{};
    const ssize_t n = next().recv(fd_, &ahead, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) {
      // A TCP segment must have begun; else somebody writes to TCP who knows nothing of the stream.
      const auto again = receiver_.read(to_.part(), true);
      if (!again || (again->kind == stream::ReadStep::Kind::kOpen && again->only_end)) {
        return reset(fd_);
      }
      if (again->kind == stream::ReadStep::Kind::kTcp) receiver_.received(0);
      return kGoOn;
    }
    if (n < 0) {
      if (errno == EAGAIN) return std::nullopt;
      return fails_with(errno);
    }
    // The bytes in the ring are older than the end.
    if (receiver_.look().bytes > 0) return kGoOn;
    const auto again = receiver_.read(to_.part(), peeks_);
    if (!again) return reset(fd_);
    if (again->kind == stream::ReadStep::Kind::kOpen) return done();
    if (again->kind == stream::ReadStep::Kind::kCopied) {
      to_.advance(again->bytes);
      if (peeks_) return done();
    } else if (again->kind == stream::ReadStep::Kind::kTcp) {
      const auto result = from_tcp(again->bytes, true);
      return result ? *result : kGoOn;
    }
    return kGoOn;
  }

  // Returns true if there is something to read again for.
  bool spin_for_bytes() {
    has_spun_ = true;
    const auto before = receiver_.look();
    if (before.bytes > 0) return true;
    lock_.unlock();
    const auto kernel_has_news = [&] {
      pollfd one{.fd = fd_, .events = POLLIN | POLLRDHUP, .revents = 0};
      const timespec at_once{};
      return next().ppoll(&one, 1, &at_once, nullptr) > 0;
    };
    const auto found =
        processor::spin([&] { return receiver_.look().seen != before.seen; }, kernel_has_news);
    lock_.lock_again();
    kernel_has_news_ = found == processor::Found::kKernel;
    return found != processor::Found::kNothing && lock_.taken() != EndLock::Taken::kOwn;
  }

  // Sleeps in recv(); all bytes that come meanwhile come by TCP.
  std::optional<ssize_t> sleep_in_kernel(std::uint64_t seen) {
    const auto withdrawn = receiver_.withdraw(seen);
    if (!withdrawn) return reset(fd_);
    if (!*withdrawn) return std::nullopt;
    const Withdrawal withdrawal(receiver_);
    lock_.unlock();
    const processor::Sleep sleep;
    const ssize_t n =
        kernel_call(next().recvmsg, fd_, to_, flags_ | (wants_all_ ? MSG_WAITALL : 0));
    sleep.ended(n >= 0);
    if (n <= 0) {
      if (n == 0) return done();
      return fails_with(errno);
    }
    if (!peeks_) receiver_.received_open(static_cast<std::size_t>(n));
    to_.advance(static_cast<std::size_t>(n));
    if (to_.at_end() || !wants_all_) return done();
    has_spun_ = false;
    return again();
  }

  std::optional<ssize_t> again() {
    lock_.lock_again();
    if (lock_.taken() == EndLock::Taken::kOwn) return fails_with(EINTR);
    if (lock_.taken() == EndLock::Taken::kOwnerDied && !receiver_.recover()) return reset(fd_);
    return std::nullopt;
  }

  static constexpr ssize_t kGoOn = -2;

  int fd_;
  Socket& socket_;
  stream::Receiver receiver_;
  EndLock lock_;
  Cursor to_;
  int flags_;
  bool peeks_;
  bool wants_all_;
  bool blocks_;
  bool has_spun_ = false;
  bool has_awaited_ = false;
  bool kernel_has_news_ = false;
};

// Sends once; the state of one call.
class Send {
 public:
  Send(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags)
      : fd_(fd),
        socket_(socket),
        sender_(socket.sender()),
        lock_(stream::place_of(socket.memory, socket.side)->direction->send_lock),
        from_(parts, count),
        // TCP must not hold bytes back that others in the ring stand behind.
        flags_(flags & ~(MSG_DONTWAIT | MSG_MORE)),
        blocks_(blocks(fd, socket, flags)) {}

  ssize_t run() {
    if (lock_.taken() == EndLock::Taken::kOwn) return failed(EINTR);
    if (lock_.taken() == EndLock::Taken::kOwnerDied && !sender_.recover()) return reset(fd_);
    if (from_.at_end()) return 0;
    look_for_peer();
    while (!from_.at_end()) {
      auto step = sender_.write(from_.part(), stream::Sender::Depth::kCached);
      if (step && step->kind == stream::WriteStep::Kind::kFull) step = when_full();
      if (!step) return reset(fd_);
      switch (step->kind) {
        case stream::WriteStep::Kind::kCopied:
          if (step->wake) leaving::wake_peer(sender_);
          from_.advance(step->bytes);
          continue;
        case stream::WriteStep::Kind::kTcp:
          if (const auto result = by_tcp(step->bytes)) return *result;
          continue;
        case stream::WriteStep::Kind::kFull: continue;
        case stream::WriteStep::Kind::kPlain: break;
      }
      lock_.unlock();
      if (from_.done() > 0) return done();
      return kernel_call(next().sendmsg, fd_, from_, flags_ | (blocks_ ? 0 : MSG_DONTWAIT));
    }
    return done();
  }

 private:
  ssize_t done() const { return static_cast<ssize_t>(from_.done()); }

  // A killed peer leaves its promise.  So if bytes stay unread, the sender asks the kernel whether
  // there is still a peer, and if not, leaves the rest to TCP, which knows the right error.
  void look_for_peer() {
    constexpr std::int64_t kLookEvery = 1'000'000;  // nanoseconds
    if (sender_.unread() == 0) return;
    const std::int64_t now = os::now().time_since_epoch().count();
    const std::int64_t before = socket_.peer_looked_at.load(std::memory_order_relaxed);
    if (now - before < kLookEvery) return;
    socket_.peer_looked_at.store(now, std::memory_order_relaxed);
    pollfd one{.fd = fd_, .events = POLLRDHUP, .revents = 0};
    const timespec at_once{};
    if (next().ppoll(&one, 1, &at_once, nullptr) > 0) {
      (void)sender_.leave(stream::Reason::kOther).has_value();
    }
  }

  // A receiver that takes nothing for a moment probably waits for a processor.  Then the more it
  // finds in the ring, the less has to go by TCP.
  Result<stream::WriteStep> when_full() {
    using Depth = stream::Sender::Depth;
    const std::size_t unread = sender_.unread();
    const bool takes = processor::spin_short([&] { return sender_.unread() < unread; });
    auto step = sender_.write(from_.part(), takes ? Depth::kCached : Depth::kWhole);
    if (step && step->kind == stream::WriteStep::Kind::kFull) {
      return sender_.write_by_tcp(from_.part().size());
    }
    return step;
  }

  std::optional<ssize_t> by_tcp(std::size_t most) {
    const auto piece = from_.part(most);
    const int quiet = from_.done() > 0 ? MSG_NOSIGNAL : 0;
    const ssize_t n = next().send(fd_, piece.data(), piece.size(), flags_ | MSG_DONTWAIT | quiet);
    const int error = errno;
    if (sender_.sent(n > 0 ? static_cast<std::size_t>(n) : 0)) leaving::wake_peer(sender_);
    if (n > 0) {
      from_.advance(static_cast<std::size_t>(n));
      return std::nullopt;
    }
    if (error != EAGAIN || !blocks_) return from_.done() > 0 ? done() : failed(error);
    lock_.unlock();
    if (!wait_in_kernel(fd_, POLLOUT, SO_SNDTIMEO)) {
      return from_.done() > 0 ? done() : failed(errno);
    }
    lock_.lock_again();
    if (lock_.taken() == EndLock::Taken::kOwn) return from_.done() > 0 ? done() : failed(EINTR);
    if (lock_.taken() == EndLock::Taken::kOwnerDied && !sender_.recover()) return reset(fd_);
    return std::nullopt;
  }

  int fd_;
  Socket& socket_;
  stream::Sender sender_;
  EndLock lock_;
  Cursor from_;
  int flags_;
  bool blocks_;
};

}  // namespace

ssize_t receive(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags) {
  if ((flags & MSG_TRUNC) == 0) return Receive(fd, socket, parts, count, flags).run();
  // The bytes are thrown away, and the program's buffer may not exist.
  std::array<std::byte, 16384> nowhere;
  std::size_t wanted = 0;
  for (std::size_t i = 0; i < count; ++i) wanted += parts[i].iov_len;
  const iovec part{.iov_base = nowhere.data(), .iov_len = std::min(wanted, nowhere.size())};
  return Receive(fd, socket, &part, 1, flags & ~MSG_TRUNC).run();
}

ssize_t send(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags) {
  return Send(fd, socket, parts, count, flags).run();
}

ssize_t send_file(int fd, Socket& socket, int file, off_t* offset, std::size_t count) {
  std::array<std::byte, 32768> piece;
  std::size_t done = 0;
  off_t at = offset != nullptr ? *offset : ::lseek(file, 0, SEEK_CUR);
  if (at < 0) return -1;
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
  // A pipe that is writable takes a page, whatever else is in it.
  std::array<std::byte, 4096> page;
  if ((flags & SPLICE_F_NONBLOCK) != 0) {
    pollfd one{.fd = pipe, .events = POLLOUT, .revents = 0};
    const timespec at_once{};
    if (next().ppoll(&one, 1, &at_once, nullptr) == 0) return failed(EAGAIN);
  }
  // The bytes leave the stream only when they are in the pipe.
  iovec part{.iov_base = page.data(), .iov_len = std::min(count, page.size())};
  const ssize_t seen = receive(fd, socket, &part, 1, MSG_PEEK | MSG_DONTWAIT);
  if (seen <= 0) return seen;
  const ssize_t written = next().write(pipe, page.data(), static_cast<std::size_t>(seen));
  if (written <= 0) return written;
  part.iov_len = static_cast<std::size_t>(written);
  return receive(fd, socket, &part, 1, MSG_WAITALL);
}

}  // namespace verbena::preload::stream_calls
