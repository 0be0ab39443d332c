#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/time.h"

// File descriptors with an owner.  This code is loaded into programs of strangers, so every
// descriptor made here is close-on-exec and above 2 (a program may have closed its stdio and would
// write its log into ours).  No function of this layer is a thread cancellation point, but
// EventFd::take_blocking(): they go past the C library's cancellable wrappers.
namespace verbena::os {

class Fd {
 public:
  Fd() = default;
  // Takes the descriptor as it is; -1 is none.
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

  // Another descriptor for the same open file; kSystem.
  Result<Fd> duplicate() const;

 private:
  int fd_ = -1;
};

// kSystem with an errno as detail.
constexpr std::unexpected<Error> system_error(int error_number, const char* context) {
  return fail(Errc::kSystem, context, static_cast<std::uint16_t>(error_number));
}
// "Not now": the errno of a call that would have had to wait.
bool would_block(const Error& error);

// What a system call returned, descriptor or -1 and errno: moved above 2 if it is below; kSystem.
Result<Fd> take_fd(int returned, const char* context);

// Another owned descriptor for the caller's one, close-on-exec and above 2; kSystem.
Result<Fd> duplicate_fd(int fd);

Result<void> set_nonblocking(int fd, bool nonblocking);
bool is_blocking(int fd);

// One read or write, repeated after EINTR.  0 bytes read: end of file.  kSystem, also EAGAIN.
Result<std::size_t> read_some(int fd, std::span<std::byte> out);
Result<std::size_t> write_some(int fd, std::span<const std::byte> bytes);
// Until all is written.  For files and pipes that block.
Result<void> write_all(int fd, std::span<const std::byte> bytes);

// One write that neither waits nor raises SIGPIPE; false if not all of the text was taken.  For
// standard error, which is the program's and may be anything.
bool write_if_room(int fd, std::string_view text);

// Waits until one of the poll(2) `events` is there (or an error or hang-up); the events that are,
// or 0 when the deadline came first.  Time{} only looks.
Result<short> wait_for(int fd, short events, Time deadline);

}  // namespace verbena::os
