#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "os/system_call.h"
#include "preload/end_lock.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/processor.h"
#include "preload/stream_calls.h"
#include "preload/stream_parts.h"
#include "preload/waits.h"

namespace verbena::preload::stream_calls {
namespace {

using os::system_call;

// Keeps the promise of a direction withdrawn while this thread may sleep in the kernel.  The
// destructor gives the promise again, even if the thread is cancelled during its sleep.
class Withdrawal {
 public:
  explicit Withdrawal(stream::Receiver& receiver) : receiver_(receiver) {}
  Withdrawal(const Withdrawal&) = delete;
  Withdrawal& operator=(const Withdrawal&) = delete;
  ~Withdrawal() { receiver_.promise(); }

 private:
  stream::Receiver& receiver_;
};

// Holds the state of one call that receives.
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
    if (lock_.outcome() == EndLock::Outcome::kNotTaken) return failed(EINTR);
    if (lock_.outcome() == EndLock::Outcome::kOwnerDied && !receiver_.recover()) return reset(fd_);
    if (const int error = socket_.take_error()) return failed(error);
    while (!to_.at_end()) {
      const auto step = receiver_.read(to_.part(), peeks_);
      if (!step) return reset(fd_);
      std::optional<ssize_t> result;
      switch (step->kind) {
        case stream::ReadStep::Kind::kCopied:
          to_.advance(step->bytes);
          if (peeks_) return peek_further(0, step->bytes);
          continue;
        case stream::ReadStep::Kind::kTcp: result = from_tcp(step->bytes, true); break;
        case stream::ReadStep::Kind::kOpen:
          if (follows_sender()) continue;
          result = from_open(*step);
          break;
        case stream::ReadStep::Kind::kPlain: return by_tcp_alone();
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

  // Ends the call with an error.  If bytes were received before it, ends the call with their
  // number; then the next call reports the error.
  ssize_t fails_with(int error) {
    if (to_.done() == 0) return failed(error);
    if (error != EAGAIN && error != EINTR) socket_.pending_error.store(error);
    return done();
  }

  // Follows the sender back to TCP, if it has gone there, and if its last bytes were read from the
  // ring.  Then only the kernel receives, which knows the place of urgent data.  Returns true if
  // this end uses plain TCP now.
  bool follows_sender() {
    const stream::Reason reason = receiver_.sender_left();
    if (reason == stream::Reason::kNone) return false;
    const auto result = receiver_.leave(reason);
    return result && *result == stream::Receiver::LeaveResult::kPlain;
  }

  ssize_t by_tcp_alone() {
    lock_.unlock();
    if (to_.done() == 0) return kernel_call(next().recvmsg, fd_, to_, call_flags());
    // A connection by TCP alone would return these bytes and the bytes of the ring in one call, up
    // to urgent data.  So go on reading.
    while (!to_.at_end()) {
      int queued = 0;
      system_call(SYS_ioctl, fd_, FIONREAD, &queued);
      // An error behind bytes stays in the kernel, where poll() and SO_ERROR show it.
      if (is_at_mark() || (queued == 0 && (!may_wait() || has_error(fd_)))) break;
      const ssize_t n = kernel_call(next().recvmsg, fd_, to_, flags_ | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN) return fails_with(errno);
      if (n == 0) break;
      if (n > 0) {
        to_.advance(static_cast<std::size_t>(n));
      } else if (!may_wait()) {
        break;
      } else if (!wait_in_kernel(fd_, POLLIN | POLLRDHUP, SO_RCVTIMEO)) {
        return fails_with(errno);
      }
    }
    return done();
  }

  // Reads at most `bytes_max` bytes from TCP.  Set `is_sent` if the bytes belong to a segment whose
  // end is known: the peer has sent them, so the call may wait for them.
  std::optional<ssize_t> from_tcp(std::size_t bytes_max, bool is_sent) {
    const auto room = to_.part(bytes_max);
    const ssize_t n = next().recv(fd_, room.data(), room.size(), flags_ | MSG_DONTWAIT);
    const int error = errno;
    receiver_.received(n > 0 && !peeks_ ? static_cast<std::size_t>(n) : 0);
    if (n > 0) {
      to_.advance(static_cast<std::size_t>(n));
      if (peeks_) return peek_further(static_cast<std::size_t>(n), 0);
      return std::nullopt;
    }
    if (n == 0) {
      const auto is_end = receiver_.ended();
      if (!is_end) return reset(fd_);
      if (*is_end) return done();
      return std::nullopt;
    }
    if (error == EAGAIN && is_sent && !may_wait() && to_.done() == 0 && !has_waited_for_delivery_) {
      return await_delivery();
    }
    if (error != EAGAIN || !may_wait()) return fails_with(error);
    if (!is_sent) return std::nullopt;
    lock_.unlock();
    // Another reader may have taken these bytes just now.  So no bytes may enter the ring during
    // the wait.
    waits::begin_sleep_always(socket_);
    const bool is_ready = wait_in_kernel(fd_, POLLIN, SO_RCVTIMEO);
    waits::end_sleep(socket_);
    if (!is_ready) return fails_with(errno);
    return relock();
  }

  // Continues MSG_PEEK behind the bytes that were copied so far: `tcp_bytes` from TCP, and
  // `ring_bytes` from the ring.
  ssize_t peek_further(std::size_t tcp_bytes, std::size_t ring_bytes) {
    while (!to_.at_end()) {
      auto step = receiver_.peek_beyond(to_.part(), tcp_bytes, ring_bytes);
      if (!step) return reset(fd_);
      std::size_t more = step->bytes;
      if (step->kind == stream::ReadStep::Kind::kCopied) {
        ring_bytes += more;
        to_.advance(more);
        continue;
      }
      if (step->kind == stream::ReadStep::Kind::kOpen && !step->only_end) {
        int queued = 0;
        system_call(SYS_ioctl, fd_, FIONREAD, &queued);
        const auto queued_bytes = static_cast<std::size_t>(queued);
        more = queued_bytes - std::min(tcp_bytes, queued_bytes);
        // Look again: if a new segment has begun meanwhile, some of these bytes may stand behind
        // bytes in the ring.
        step = receiver_.peek_beyond(to_.part(), tcp_bytes, ring_bytes);
        if (!step || step->kind != stream::ReadStep::Kind::kOpen) continue;
        if (step->only_end) break;
      }
      const std::size_t n = more > 0 ? peek_at_tcp(tcp_bytes, more) : 0;
      if (n == 0) break;
      tcp_bytes += n;
      to_.advance(n);
    }
    return done();
  }

  // Copies at most `bytes_max` bytes of TCP after the first `skipped` bytes.  Returns 0 if there
  // are none, or if too many bytes must be skipped.
  std::size_t peek_at_tcp(std::size_t skipped, std::size_t bytes_max) const {
    std::array<std::byte, 8192> discarded;
    std::array<iovec, kPartsMax> parts;
    std::size_t count = 0;
    for (std::size_t remaining = skipped; remaining > 0; ++count) {
      if (count + 1 == parts.size()) return 0;
      parts[count] = {.iov_base = discarded.data(),
                      .iov_len = std::min(remaining, discarded.size())};
      remaining -= parts[count].iov_len;
    }
    const auto room = to_.part(bytes_max);
    parts[count] = {.iov_base = room.data(), .iov_len = room.size()};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count + 1;
    const ssize_t n = next().recvmsg(fd_, &message, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 && static_cast<std::size_t>(n) > skipped ? static_cast<std::size_t>(n) - skipped
                                                          : 0;
  }

  // The kernel delivers accepted bytes of TCP within microseconds, but epoll may have reported
  // later bytes in the ring already.  So a call that does not block waits for the delivery.
  std::optional<ssize_t> await_delivery() {
    constexpr timespec kDelivery{.tv_sec = 0, .tv_nsec = 20'000'000};
    has_waited_for_delivery_ = true;
    lock_.unlock();
    pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
    next().ppoll(&one, 1, &kDelivery, nullptr);
    return relock();
  }

  // Continues with an empty ring.  TCP may have bytes, an end, or nothing.
  std::optional<ssize_t> from_open(const stream::ReadStep& step) {
    const bool may_wait = this->may_wait();
    if (!step.only_end || kernel_has_news_ || (to_.done() == 0 && !may_wait)) {
      kernel_has_news_ = false;
      if (const auto result = look_at_tcp(step)) {
        if (*result == kReadAgain) return std::nullopt;
        return result;
      }
    }
    if (!may_wait) return to_.done() > 0 ? done() : failed(EAGAIN);
    if (!has_spun_ && spin_for_bytes()) return std::nullopt;
    if (lock_.outcome() == EndLock::Outcome::kNotTaken) return fails_with(EINTR);
    return sleep_in_kernel(step.tail);
  }

  // Takes the bytes that TCP has, without withdrawing the promise.  Returns nothing if TCP has
  // none, and kReadAgain if the caller must read again.
  std::optional<ssize_t> look_at_tcp(const stream::ReadStep& step) {
    int queued = 0;
    if (!step.only_end) system_call(SYS_ioctl, fd_, FIONREAD, &queued);
    if (queued > 0) {
      const auto bound = receiver_.queued_bound(static_cast<std::size_t>(queued));
      if (!bound) return reset(fd_);
      if (*bound == 0) return kReadAgain;
      const auto result = from_tcp(*bound, false);
      return result ? *result : kReadAgain;
    }
    // The program gets its bytes first.  To look further would take an error from the kernel, where
    // poll() and SO_ERROR show it until the next call.
    if (to_.done() > 0 && (!may_wait() || has_error(fd_))) return done();
    std::byte ahead{};
    const ssize_t n = next().recv(fd_, &ahead, 1, MSG_PEEK | MSG_DONTWAIT);
    const int error = errno;
    if (n <= 0 && !receiver_.sender_has_started() && is_at_mark()) {
      // The peer has sent urgent data, so it stays on TCP.  The kernel's own call passes the mark.
      return receiver_.leave(stream::Reason::kUrgent) ? kReadAgain : reset(fd_);
    }
    if (n > 0) {
      // A TCP segment must have begun.  Otherwise a program that does not know the stream has
      // written to TCP.
      const auto next_step = receiver_.read(to_.part(), true);
      if (!next_step || (next_step->kind == stream::ReadStep::Kind::kOpen && next_step->only_end)) {
        return reset(fd_);
      }
      if (next_step->kind == stream::ReadStep::Kind::kTcp) receiver_.received(0);
      // FIONREAD counts only the bytes before urgent data, and only the kernel knows where that is.
      if (next_step->kind == stream::ReadStep::Kind::kOpen && is_at_mark()) {
        if (!receiver_.leave(stream::Reason::kUrgent)) return reset(fd_);
      }
      return kReadAgain;
    }
    if (n < 0) {
      if (error == EAGAIN) return std::nullopt;
      return fails_with(error);
    }
    // The bytes in the ring are older than the end.
    if (receiver_.look().bytes > 0) return kReadAgain;
    const auto next_step = receiver_.read(to_.part(), peeks_);
    if (!next_step) return reset(fd_);
    if (next_step->kind == stream::ReadStep::Kind::kOpen) return done();
    if (next_step->kind == stream::ReadStep::Kind::kCopied) {
      to_.advance(next_step->bytes);
      if (peeks_) return peek_further(0, next_step->bytes);
    } else if (next_step->kind == stream::ReadStep::Kind::kTcp) {
      const auto result = from_tcp(next_step->bytes, true);
      return result ? *result : kReadAgain;
    }
    return kReadAgain;
  }

  bool is_at_mark() const {
    int at_mark = 0;
    system_call(SYS_ioctl, fd_, SIOCATMARK, &at_mark);
    return at_mark != 0;
  }

  // Spins for a moment until bytes come.  Returns true if the caller must read again.
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
    const auto spin_result =
        processor::spin([&] { return receiver_.look().tail != before.tail; }, kernel_has_news);
    lock_.lock_again();
    kernel_has_news_ = spin_result == processor::SpinResult::kKernel;
    return spin_result != processor::SpinResult::kNothing &&
           lock_.outcome() != EndLock::Outcome::kNotTaken;
  }

  // Sleeps in recv().  All bytes that come during the sleep come by TCP.
  std::optional<ssize_t> sleep_in_kernel(std::uint64_t tail) {
    const auto withdrawn = receiver_.withdraw(tail);
    if (!withdrawn) return reset(fd_);
    if (!*withdrawn) return std::nullopt;
    const Withdrawal withdrawal(receiver_);
    lock_.unlock();
    // An error behind bytes stays in the kernel, where poll() and SO_ERROR show it.
    if (to_.done() > 0) {
      if (!wait_in_kernel(fd_, POLLIN | POLLRDHUP, SO_RCVTIMEO)) return fails_with(errno);
      kernel_has_news_ = true;
      return relock();
    }
    std::array<iovec, kPartsMax> parts;
    const std::size_t room = bytes_of(parts.data(), to_.rest(parts));
    const processor::SleepTimer timer;
    const ssize_t n =
        kernel_call(next().recvmsg, fd_, to_, flags_ | (wants_all_ ? MSG_WAITALL : 0));
    timer.ended(n >= 0);
    if (n <= 0) {
      if (n == 0) return done();
      return fails_with(errno);
    }
    if (!peeks_) receiver_.received_open(static_cast<std::size_t>(n));
    // Fewer bytes than MSG_WAITALL asks for mean a signal, a timeout, an end or an error, which the
    // kernel reports to the next call.
    const bool is_cut_short = static_cast<std::size_t>(n) < room;
    to_.advance(static_cast<std::size_t>(n));
    if (to_.at_end() || !wants_all_ || is_cut_short) return done();
    has_spun_ = false;
    return relock();
  }

  // Takes the lock again.  Returns the result of the program's call if this fails.
  std::optional<ssize_t> relock() {
    lock_.lock_again();
    if (lock_.outcome() == EndLock::Outcome::kNotTaken) return fails_with(EINTR);
    if (lock_.outcome() == EndLock::Outcome::kOwnerDied && !receiver_.recover()) return reset(fd_);
    return std::nullopt;
  }

  static constexpr ssize_t kReadAgain = -2;  // no program's call returns this value

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
  bool has_waited_for_delivery_ = false;
  bool kernel_has_news_ = false;
};

}  // namespace

namespace {

// Waits for bytes or an end, and takes none.  recv(2) does so if the program has no room for bytes.
ssize_t receive_nothing(int fd, Socket& socket, int flags) {
  std::byte ahead{};
  const iovec part{.iov_base = &ahead, .iov_len = 1};
  if (Receive(fd, socket, &part, 1, MSG_PEEK | MSG_DONTWAIT).run() >= 0) return 0;
  if (errno != EAGAIN) return -1;
  // The ring is empty.  If an out-of-band byte is next, this call of the kernel removes it.
  if (!blocks(fd, socket, flags)) return next().recv(fd, &ahead, 0, flags | MSG_DONTWAIT);
  if (socket.receiver().has_left()) return next().recv(fd, &ahead, 0, flags);
  // The kernel's call would return 0 even if its wait ended by a timeout or a signal.
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  const auto limit = timeout_of(fd, SO_RCVTIMEO);
  ::ppoll(&one, 1, limit ? &*limit : nullptr, nullptr);
  return 0;
}

}  // namespace

ssize_t receive(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags) {
  const std::size_t wanted = bytes_of(parts, count);
  if (wanted == 0) return receive_nothing(fd, socket, flags);
  if ((flags & MSG_TRUNC) == 0) return Receive(fd, socket, parts, count, flags).run();
  // With MSG_TRUNC, the bytes are thrown away, and the program's buffer may not exist.
  std::array<std::byte, 16384> discarded;
  const iovec part{.iov_base = discarded.data(), .iov_len = std::min(wanted, discarded.size())};
  return Receive(fd, socket, &part, 1, flags & ~MSG_TRUNC).run();
}

}  // namespace verbena::preload::stream_calls
