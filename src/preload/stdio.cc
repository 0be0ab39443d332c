#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <ranges>
#include <string>

#include "os/no_cancellation.h"
#include "preload/change_over.h"
#include "preload/export.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/socket_table.h"

// Defines the functions of stdio that take or close a descriptor.  The C library reads and writes
// these descriptors by calls that this library does not wrap.

using verbena::preload::next;
using verbena::preload::SocketTable;
namespace leaving = verbena::preload::leaving;

// Takes the connection back to TCP.  Puts the unread bytes in the ring, and the bytes of TCP before
// them, into the FILE by ungetc().
VB_EXPORT FILE* fdopen(int fd, const char* mode) noexcept {
  FILE* file = next().fdopen(fd, mode);
  const auto socket = SocketTable::find(fd);
  if (file == nullptr || !socket) return file;
  const verbena::os::NoCancellation no_cancellation;
  constexpr auto kReason = verbena::stream::Reason::kOther;
  const bool reads = std::strpbrk(mode, "r+") != nullptr;
  if (!reads) {
    (void)leaving::use_only_tcp(fd, *socket, kReason);
    return file;
  }
  const std::string unread = leaving::drain(fd, *socket, kReason);
  for (const char byte : std::views::reverse(unread)) {
    if (::ungetc(static_cast<unsigned char>(byte), file) != EOF) continue;
    leaving::reset(fd);
    break;
  }
  return file;
}

namespace {

// Stops tracking the descriptor of a FILE, which the C library is about to close.
void forget(FILE* file) {
  if (file != nullptr) verbena::preload::change_over::forget(::fileno(file));
}

// Writes a text that the C library has allocated, and frees it.
int write_all(int fd, int bytes, char* allocated) {
  const std::unique_ptr<char, decltype(&::free)> text(bytes < 0 ? nullptr : allocated, ::free);
  for (int done = 0; done < bytes;) {
    const ssize_t n = ::write(fd, text.get() + done, static_cast<std::size_t>(bytes - done));
    if (n < 0) return -1;
    done += static_cast<int>(n);
  }
  return bytes;
}

}  // namespace

VB_EXPORT int fclose(FILE* file) {
  forget(file);
  return next().fclose(file);
}
VB_EXPORT FILE* freopen(const char* path, const char* mode, FILE* file) {
  if (path != nullptr) forget(file);
  return next().freopen(path, mode, file);
}
VB_EXPORT FILE* freopen64(const char* path, const char* mode, FILE* file) {
  return freopen(path, mode, file);
}

VB_EXPORT int vdprintf(int fd, const char* format, va_list arguments) {
  if (!SocketTable::has(fd)) return next().vdprintf(fd, format, arguments);
  char* text = nullptr;
  const int bytes = ::vasprintf(&text, format, arguments);
  return write_all(fd, bytes, text);
}
VB_EXPORT int dprintf(int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int bytes = vdprintf(fd, format, arguments);
  va_end(arguments);
  return bytes;
}
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
VB_EXPORT int __vdprintf_chk(int fd, int flag, const char* format, va_list arguments) {
  if (!SocketTable::has(fd)) return next().vdprintf_chk(fd, flag, format, arguments);
  char* text = nullptr;
  const int bytes = next().vasprintf_chk(&text, flag, format, arguments);
  return write_all(fd, bytes, text);
}
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
VB_EXPORT int __dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int bytes = __vdprintf_chk(fd, flag, format, arguments);
  va_end(arguments);
  return bytes;
}
