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

// Represents a withdrawal of the promise to check the ring (stream/memory.h), while this thread
// sleeps in the kernel.  The destructor promises again, even if the thread is cancelled while it
// sleeps.
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
        lock_(socket.end->receive_lock, socket.lock_is_stuck),
        cursor_(parts, count),
        flags_(flags & ~(MSG_WAITALL | MSG_DONTWAIT)),
        peeks_((flags & MSG_PEEK) != 0),
        wants_all_((flags & MSG_WAITALL) != 0 && !peeks_),
        blocks_(may_block(fd, socket, flags)) {}

  ssize_t run() {
    if (const auto result = check_lock()) return *result;
    if (const int error = socket_.take_error()) return failed(error);
    while (!cursor_.at_end()) {
      const auto step = receiver_.read(cursor_.part(), peeks_);
      if (!step) return reset(fd_);
      std::optional<ssize_t> result;
      switch (step->kind) {
        case stream::ReadStep::Kind::kCopied:
          cursor_.advance(step->bytes);
          if (peeks_) return peek_further(0, step->bytes);
          continue;
        case stream::ReadStep::Kind::kTcp: result = read_from_tcp(step->bytes, true); break;
        case stream::ReadStep::Kind::kRingEmpty:
          if (follows_sender()) continue;
          result = read_with_empty_ring(*step);
          break;
        case stream::ReadStep::Kind::kPlain: return receive_by_plain_tcp();
      }
      if (result) return *result;
    }
    return done();
  }

 private:
  ssize_t done() const { return static_cast<ssize_t>(cursor_.done()); }
  bool may_wait() const { return blocks_ && (cursor_.done() == 0 || wants_all_); }
  int call_flags() const {
    return flags_ | (blocks_ ? 0 : MSG_DONTWAIT) | (wants_all_ ? MSG_WAITALL : 0);
  }

  // Returns the result of the call after an error.  If the call has received bytes before the
  // error, returns their number; then the next call reports the error.
  ssize_t end_with_error(int error) {
    if (cursor_.done() == 0) return failed(error);
    if (error != EAGAIN && error != EINTR) socket_.pending_error.store(error);
    return done();
  }

  // Goes back to TCP if the sender has gone back, and if all its bytes were read from the ring.
  // After that only the kernel receives, which knows the position of urgent data.  Returns true if
  // this end uses plain TCP now.
  bool follows_sender() {
    const stream::Reason reason = receiver_.sender_leave_reason();
    if (reason == stream::Reason::kNone) return false;
    const auto result = receiver_.leave(reason);
    return result && *result == stream::Receiver::LeaveResult::kPlain;
  }

  ssize_t receive_by_plain_tcp() {
    lock_.unlock();
    if (cursor_.done() == 0) return kernel_call(next().recvmsg, fd_, cursor_, call_flags());
    // TCP alone would return the bytes of the ring and the following bytes in one call, up to
    // urgent data.  So this call goes on reading.
    while (!cursor_.at_end()) {
      int queued = 0;
      system_call(SYS_ioctl, fd_, FIONREAD, &queued);
      // An error after these bytes stays in the kernel, so that poll() and SO_ERROR report it.
      if (is_at_urgent_mark() || (queued == 0 && (!may_wait() || has_error(fd_)))) break;
      const ssize_t n = kernel_call(next().recvmsg, fd_, cursor_, flags_ | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN) return end_with_error(errno);
      if (n == 0) break;
      if (n > 0) {
        cursor_.advance(static_cast<std::size_t>(n));
      } else if (!may_wait()) {
        break;
      } else if (!wait_in_kernel(fd_, POLLIN | POLLRDHUP, SO_RCVTIMEO)) {
        return end_with_error(errno);
      }
    }
    return done();
  }

  // Reads at most `bytes_max` bytes from TCP.  Set `is_sent` if the bytes belong to a segment whose
  // end is known.  Then the peer has sent the bytes, so the call may wait for them.
  std::optional<ssize_t> read_from_tcp(std::size_t bytes_max, bool is_sent) {
    const auto target = cursor_.part(bytes_max);
    const ssize_t n = next().recv(fd_, target.data(), target.size(), flags_ | MSG_DONTWAIT);
    const int error = errno;
    receiver_.received(n > 0 && !peeks_ ? static_cast<std::size_t>(n) : 0);
    if (n > 0) {
      cursor_.advance(static_cast<std::size_t>(n));
      if (peeks_) return peek_further(static_cast<std::size_t>(n), 0);
      return std::nullopt;
    }
    if (n == 0) {
      const auto is_end = receiver_.check_end();
      if (!is_end) return reset(fd_);
      if (*is_end) return done();
      return std::nullopt;
    }
    if (error == EAGAIN && is_sent && !may_wait() && cursor_.done() == 0 &&
        !has_waited_for_delivery_) {
      return await_delivery();
    }
    if (error != EAGAIN || !may_wait()) return end_with_error(error);
    if (!is_sent) return std::nullopt;
    lock_.unlock();
    // Another reader may have taken these bytes just now.  So this call waits for the next bytes,
    // which must come by TCP and not by the ring.
    waits::begin_sleep_always(socket_);
    const bool is_ready = wait_in_kernel(fd_, POLLIN, SO_RCVTIMEO);
    waits::end_sleep(socket_);
    if (!is_ready) return end_with_error(errno);
    return relock();
  }

  // Continues a call with MSG_PEEK after the bytes that were copied so far: `tcp_bytes` from TCP,
  // and `ring_bytes` from the ring.
  ssize_t peek_further(std::size_t tcp_bytes, std::size_t ring_bytes) {
    while (!cursor_.at_end()) {
      auto step = receiver_.peek_beyond(cursor_.part(), tcp_bytes, ring_bytes);
      if (!step) return reset(fd_);
      std::size_t more = step->bytes;
      if (step->kind == stream::ReadStep::Kind::kCopied) {
        ring_bytes += more;
        cursor_.advance(more);
        continue;
      }
      if (step->kind == stream::ReadStep::Kind::kRingEmpty && !step->is_tcp_drained) {
        int queued = 0;
        system_call(SYS_ioctl, fd_, FIONREAD, &queued);
        const auto queued_bytes = static_cast<std::size_t>(queued);
        more = queued_bytes - std::min(tcp_bytes, queued_bytes);
        // Checks the segments again: if a new segment has begun meanwhile, bytes in the ring may
        // precede some of the queued bytes.
        step = receiver_.peek_beyond(cursor_.part(), tcp_bytes, ring_bytes);
        if (!step || step->kind != stream::ReadStep::Kind::kRingEmpty) continue;
        if (step->is_tcp_drained) break;
      }
      const std::size_t n = more > 0 ? peek_at_tcp(tcp_bytes, more) : 0;
      if (n == 0) break;
      tcp_bytes += n;
      cursor_.advance(n);
    }
    return done();
  }

  // Copies at most `bytes_max` bytes of TCP after the first `skipped` bytes, without removing them.
  // Returns 0 if there are none, or if too many bytes must be skipped.
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
    const auto target = cursor_.part(bytes_max);
    parts[count] = {.iov_base = target.data(), .iov_len = target.size()};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count + 1;
    const ssize_t n = next().recvmsg(fd_, &message, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 && static_cast<std::size_t>(n) > skipped ? static_cast<std::size_t>(n) - skipped
                                                          : 0;
  }

  // Waits until the kernel delivers bytes of TCP that it has accepted from the sender.  This takes
  // some microseconds.  Even a call that does not block waits, because epoll may have reported
  // later bytes in the ring already.
  std::optional<ssize_t> await_delivery() {
    constexpr timespec kDelivery{.tv_sec = 0, .tv_nsec = 20'000'000};
    has_waited_for_delivery_ = true;
    lock_.unlock();
    pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
    next().ppoll(&one, 1, &kDelivery, nullptr);
    return relock();
  }

  // Continues the call after a step kRingEmpty.  TCP may have bytes, an end, or nothing.  Returns
  // the result of the program's call, or nothing if the caller must read again.
  std::optional<ssize_t> read_with_empty_ring(const stream::ReadStep& step) {
    const bool may_wait = this->may_wait();
    if (!step.is_tcp_drained || kernel_has_events_ || (cursor_.done() == 0 && !may_wait)) {
      kernel_has_events_ = false;
      if (const auto result = take_from_tcp(step)) {
        if (*result == kReadAgain) return std::nullopt;
        return result;
      }
    }
    if (!may_wait) return cursor_.done() > 0 ? done() : failed(EAGAIN);
    if (!has_spun_) {
      has_spun_ = true;
      const auto before = receiver_.ring_status();
      if (before.bytes > 0) return std::nullopt;
      lock_.unlock();
      const bool bytes_came = spin_for_bytes(before.tail);
      if (const auto result = relock()) return result;
      if (bytes_came) return std::nullopt;
    }
    return sleep_in_kernel(step.tail);
  }

  // Takes the bytes that TCP has, without a withdrawal of the promise.  Returns nothing if TCP has
  // none, kReadAgain if the caller must read again, or the result of the program's call.
  std::optional<ssize_t> take_from_tcp(const stream::ReadStep& step) {
    int queued = 0;
    if (!step.is_tcp_drained) system_call(SYS_ioctl, fd_, FIONREAD, &queued);
    if (queued > 0) {
      const auto allowed = receiver_.begin_queued_read(static_cast<std::size_t>(queued));
      if (!allowed) return reset(fd_);
      if (*allowed == 0) return kReadAgain;
      const auto result = read_from_tcp(*allowed, false);
      return result ? *result : kReadAgain;
    }
    // Returns the bytes that were received so far.  The recv() below would remove an error from the
    // kernel, but poll() and SO_ERROR must report the error until the program's next call.
    if (cursor_.done() > 0 && (!may_wait() || has_error(fd_))) return done();
    std::byte next_byte{};
    const ssize_t n = next().recv(fd_, &next_byte, 1, MSG_PEEK | MSG_DONTWAIT);
    const int error = errno;
    if (n <= 0 && !receiver_.sender_has_started() && is_at_urgent_mark()) {
      // The peer has sent urgent data, so the connection stays on TCP, and the kernel handles the
      // urgent mark.
      return receiver_.leave(stream::Reason::kUrgent) ? kReadAgain : reset(fd_);
    }
    if (n > 0) {
      // If no new TCP segment has begun, these bytes were written to TCP by a program without this
      // library.
      const auto next_step = receiver_.read(cursor_.part(), true);
      if (!next_step ||
          (next_step->kind == stream::ReadStep::Kind::kRingEmpty && next_step->is_tcp_drained)) {
        return reset(fd_);
      }
      if (next_step->kind == stream::ReadStep::Kind::kTcp) receiver_.received(0);
      // FIONREAD has reported 0, although there is a byte.  It counts only the bytes before urgent
      // data, so there is urgent data, and only the kernel knows its position.
      if (next_step->kind == stream::ReadStep::Kind::kRingEmpty && is_at_urgent_mark()) {
        if (!receiver_.leave(stream::Reason::kUrgent)) return reset(fd_);
      }
      return kReadAgain;
    }
    if (n < 0) {
      if (error == EAGAIN) return std::nullopt;
      return end_with_error(error);
    }
    // There is an end of file.  Bytes in the ring precede it.
    if (receiver_.ring_status().bytes > 0) return kReadAgain;
    const auto next_step = receiver_.read(cursor_.part(), peeks_);
    if (!next_step) return reset(fd_);
    if (next_step->kind == stream::ReadStep::Kind::kRingEmpty) return done();
    if (next_step->kind == stream::ReadStep::Kind::kCopied) {
      cursor_.advance(next_step->bytes);
      if (peeks_) return peek_further(0, next_step->bytes);
    } else if (next_step->kind == stream::ReadStep::Kind::kTcp) {
      const auto result = read_from_tcp(next_step->bytes, true);
      return result ? *result : kReadAgain;
    }
    return kReadAgain;
  }

  bool is_at_urgent_mark() const {
    int at_mark = 0;
    system_call(SYS_ioctl, fd_, SIOCATMARK, &at_mark);
    return at_mark != 0;
  }

  // Spins without the lock for a moment, until bytes come after `tail` or by TCP.  Returns true if
  // some came.
  bool spin_for_bytes(std::uint64_t tail) {
    const auto kernel_has_events = [&] {
      pollfd one{.fd = fd_, .events = POLLIN | POLLRDHUP, .revents = 0};
      const timespec at_once{};
      return next().ppoll(&one, 1, &at_once, nullptr) > 0;
    };
    const auto spin_result =
        processor::spin([&] { return receiver_.ring_status().tail != tail; }, kernel_has_events);
    kernel_has_events_ = spin_result == processor::SpinResult::kKernelEvent;
    return spin_result != processor::SpinResult::kNothing;
  }

  // Sleeps in the kernel until bytes come.  During the sleep all bytes come by TCP.
  std::optional<ssize_t> sleep_in_kernel(std::uint64_t tail) {
    const auto withdrawn = receiver_.withdraw(tail);
    if (!withdrawn) return reset(fd_);
    if (!*withdrawn) return std::nullopt;
    const Withdrawal withdrawal(receiver_);
    lock_.unlock();
    // This call has received bytes already, so it only waits.  An error after these bytes stays in
    // the kernel, so that poll() and SO_ERROR report it.
    if (cursor_.done() > 0) {
      if (!wait_in_kernel(fd_, POLLIN | POLLRDHUP, SO_RCVTIMEO)) return end_with_error(errno);
      kernel_has_events_ = true;
      return relock();
    }
    std::array<iovec, kPartsMax> parts;
    const std::size_t requested = bytes_of(parts.data(), cursor_.rest(parts));
    const processor::SleepTimer timer;
    const ssize_t n =
        kernel_call(next().recvmsg, fd_, cursor_, flags_ | (wants_all_ ? MSG_WAITALL : 0));
    timer.ended(n >= 0);
    if (n <= 0) {
      if (n == 0) return done();
      return end_with_error(errno);
    }
    if (!peeks_) receiver_.received_while_withdrawn(static_cast<std::size_t>(n));
    // If MSG_WAITALL returns fewer bytes than requested, there was a signal, a timeout, an end or
    // an error, which the kernel reports to the next call.
    const bool is_short = static_cast<std::size_t>(n) < requested;
    cursor_.advance(static_cast<std::size_t>(n));
    if (cursor_.at_end() || !wants_all_ || is_short) return done();
    has_spun_ = false;
    return relock();
  }

  // Takes the lock again.  If this fails, returns the result of the program's call.
  std::optional<ssize_t> relock() {
    lock_.lock_again();
    return check_lock();
  }

  // Returns nothing if this thread has the lock, and otherwise the result of the program's call.
  std::optional<ssize_t> check_lock() {
    switch (lock_.outcome()) {
      case EndLock::Outcome::kTaken: return std::nullopt;
      case EndLock::Outcome::kNotTaken: return end_with_error(EINTR);
      case EndLock::Outcome::kGivenUp: return reset(fd_);
      case EndLock::Outcome::kOwnerDied: break;
    }
    if (!receiver_.recover()) return reset(fd_);
    return std::nullopt;
  }

  static constexpr ssize_t kReadAgain = -2;  // no program's call returns this value

  int fd_;
  Socket& socket_;
  stream::Receiver receiver_;
  EndLock lock_;
  Cursor cursor_;
  int flags_;
  bool peeks_;
  bool wants_all_;
  bool blocks_;
  bool has_spun_ = false;
  bool has_waited_for_delivery_ = false;
  bool kernel_has_events_ = false;
};

}  // namespace

namespace {

// Waits for bytes or an end, without receiving bytes.  recv(2) does this if the program's buffer
// has 0 bytes.
ssize_t wait_with_empty_buffer(int fd, Socket& socket, int flags) {
  std::byte next_byte{};
  const iovec part{.iov_base = &next_byte, .iov_len = 1};
  if (Receive(fd, socket, &part, 1, MSG_PEEK | MSG_DONTWAIT).run() >= 0) return 0;
  if (errno != EAGAIN) return -1;
  // The ring is empty, so the kernel has to answer the call.
  if (!may_block(fd, socket, flags)) return next().recv(fd, &next_byte, 0, flags | MSG_DONTWAIT);
  if (socket.receiver().has_left()) return next().recv(fd, &next_byte, 0, flags);
  // Like the kernel's call, this one returns 0 even if the wait ended by a timeout or a signal.
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  const auto limit = timeout_of(fd, SO_RCVTIMEO);
  ::ppoll(&one, 1, limit ? &*limit : nullptr, nullptr);
  return 0;
}

// Receives at most `wanted` bytes for recv() with MSG_TRUNC, which discards the bytes.  The
// program's buffer may be a null pointer, so the bytes of all parts overwrite one another here.
ssize_t discard(int fd, Socket& socket, std::size_t wanted, int flags) {
  std::array<std::byte, 16384> discarded;
  std::array<iovec, kPartsMax> parts;  // one call discards at most 1 MiB
  std::size_t count = 0;
  while (wanted > 0 && count < parts.size()) {
    parts[count] = {.iov_base = discarded.data(), .iov_len = std::min(wanted, discarded.size())};
    wanted -= parts[count++].iov_len;
  }
  return Receive(fd, socket, parts.data(), count, flags).run();
}

}  // namespace

ssize_t receive(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags) {
  const std::size_t wanted = bytes_of(parts, count);
  if (wanted == 0) return wait_with_empty_buffer(fd, socket, flags);
  if ((flags & MSG_TRUNC) == 0) return Receive(fd, socket, parts, count, flags).run();
  return discard(fd, socket, wanted, flags & ~MSG_TRUNC);
}

}  // namespace verbena::preload::stream_calls
