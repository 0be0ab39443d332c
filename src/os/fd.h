#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/time.h"

// Owns file descriptors.  This code runs inside other people's programs, so every descriptor that
// it makes is close-on-exec and above 2.  Otherwise, a program that has closed its standard output
// might write its log into our descriptor.  A program may cancel its threads, so the functions
// of this file, of Poller and of UnixChannel bypass the C library's cancellable wrappers.
namespace verbena::os {

class Fd {
 public:
  Fd() = default;
  // Takes ownership of the descriptor, whatever its number is; -1 means no descriptor.
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset();

  // Returns a new descriptor for the same open file.  Fails with kSystem.
  Result<Fd> duplicate() const;

 private:
  int fd_ = -1;
};

// Makes an error of the code kSystem with the errno as its detail.
constexpr std::unexpected<Error> system_error(int error_number, const char* context) {
  return fail(Errc::kSystem, context, static_cast<std::uint16_t>(error_number));
}
// Returns true if the error is EAGAIN: a non-blocking call would have had to wait.
bool would_block(const Error& error);

// Wraps the result of a system call in an Fd.  `result` is a descriptor, or -1 with errno set,
// which is returned as kSystem.  A descriptor of 0 to 2 is replaced by a copy above 2.
Result<Fd> take_fd(int result, const char* context);

// Returns a new descriptor for the same open file as `fd`.  It is close-on-exec and above 2.  Fails
// with kSystem.
Result<Fd> duplicate_fd(int fd);

Result<void> set_nonblocking(int fd, bool nonblocking);
bool is_blocking(int fd);

// Calls read(2) or write(2) once, or again after EINTR.  Returns the number of bytes; for a read, 0
// means end of file.  Fails with kSystem, also for EAGAIN.
Result<std::size_t> read_some(int fd, std::span<std::byte> out);
Result<std::size_t> write_some(int fd, std::span<const std::byte> bytes);
// Writes all bytes.  Use it only for blocking files and pipes.
Result<void> write_all(int fd, std::span<const std::byte> bytes);

// Calls write(2) once, without waiting and without SIGPIPE.  Returns false if not all of the text
// was written.  Use it for standard error, which belongs to the program and may be any kind of
// file.
bool try_write(int fd, std::string_view text);

// Waits for one of the poll(2) `events`, an error or a hang-up.  Returns the events, or 0 if the
// deadline passed first.  A deadline of Time{} polls without waiting.
Result<short> wait_for(int fd, short events, Time deadline);

}  // namespace verbena::os
