#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <optional>
#include <span>

#include "preload/socket_table.h"

// Declares helpers for the calls that receive and the calls that send.
namespace verbena::preload::stream_calls {

// Iterates over the bytes of a message, which consists of parts (iovec).
class Cursor {
 public:
  Cursor(const iovec* parts, std::size_t count) : parts_(parts), count_(count) { skip_empty(); }

  bool at_end() const { return index_ == count_; }
  // Returns the rest of the current part, at most `bytes_max` bytes.
  std::span<std::byte> part(std::size_t bytes_max = SSIZE_MAX) const {
    const iovec& current = parts_[index_];
    return {static_cast<std::byte*>(current.iov_base) + offset_,
            std::min(current.iov_len - offset_, bytes_max)};
  }
  // Advances by this number of bytes, which may span several parts.
  void advance(std::size_t bytes) {
    done_ += bytes;
    while (index_ < count_ && bytes >= parts_[index_].iov_len - offset_) {
      bytes -= parts_[index_].iov_len - offset_;
      ++index_;
      offset_ = 0;
    }
    offset_ += bytes;
  }
  // Returns the number of bytes before the cursor.
  std::size_t done() const { return done_; }

  // Returns the number of bytes in the next `parts_max` parts.
  std::size_t bytes_of_parts(std::size_t parts_max) const {
    std::size_t bytes = 0;
    for (std::size_t i = index_; i < count_ && parts_max > 0; ++i, --parts_max) {
      bytes += parts_[i].iov_len - (i == index_ ? offset_ : 0);
    }
    return bytes;
  }

  // Fills `out` with parts that describe the bytes after the cursor, at most `bytes_max` bytes.
  // Returns the number of parts.
  std::size_t rest(std::span<iovec> out, std::size_t bytes_max = SSIZE_MAX) const {
    std::size_t n = 0;
    std::size_t skipped = offset_;
    for (std::size_t i = index_; i < count_ && n < out.size() && bytes_max > 0; ++i, ++n) {
      out[n] = {.iov_base = static_cast<std::byte*>(parts_[i].iov_base) + skipped,
                .iov_len = std::min(parts_[i].iov_len - skipped, bytes_max)};
      bytes_max -= out[n].iov_len;
      skipped = 0;
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

inline std::size_t bytes_of(const iovec* parts, std::size_t count) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return bytes;
}

inline constexpr std::size_t kPartsMax = 64;

// Calls recvmsg() or sendmsg() of the kernel for the bytes after the cursor, at most `bytes_max`
// bytes and kPartsMax parts.
template <class Call>
ssize_t kernel_call(Call call, int fd, const Cursor& cursor, int flags,
                    std::size_t bytes_max = SSIZE_MAX) {
  std::array<iovec, kPartsMax> parts;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = cursor.rest(parts, bytes_max);
  return call(fd, &message, flags);
}

// Returns true if a call with these flags may sleep.
bool may_block(int fd, const Socket& socket, int flags);

// Returns SO_RCVTIMEO or SO_SNDTIMEO, if the program has set it.
std::optional<timespec> timeout_of(int fd, int timeout_option);

// Waits until the kernel reports `events`, or until the socket's timeout.  Returns false and sets
// errno if the program's call must return.
bool wait_in_kernel(int fd, short events, int timeout_option);

// Returns true if the socket has an error (POLLERR) that the kernel's next call would return.
bool has_error(int fd);

// Resets a connection for both sides, because its memory holds invalid values or a process died in
// a TCP call.  Sets errno to ECONNRESET and returns -1.
ssize_t reset(int fd);

// Sets errno and returns -1.
ssize_t failed(int error);

}  // namespace verbena::preload::stream_calls
