#include "os/watched_file.h"

#include <sys/inotify.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

namespace verbena::os {

Result<WatchedFile> WatchedFile::create(const char* name) {
  Fd file = VB_TRY(take_fd(::memfd_create(name, MFD_CLOEXEC), "cannot make a memfd"));
  Fd events =
      VB_TRY(take_fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK), "cannot watch files (inotify)"));
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  if (::inotify_add_watch(events.get(), path.c_str(), IN_OPEN | IN_CLOSE) < 0) {
    return system_error(errno, "cannot watch a file in memory (inotify)");
  }
  return WatchedFile(std::move(file), std::move(events));
}

std::vector<bool> WatchedFile::next_events() {
  std::vector<bool> opened;
  alignas(inotify_event) std::array<std::byte, 4096> buffer;
  const auto bytes = read_some(events_.get(), buffer);
  if (!bytes) return opened;
  for (std::size_t at = 0; at + sizeof(inotify_event) <= *bytes;) {
    inotify_event event{};
    std::memcpy(&event, buffer.data() + at, sizeof event);
    if ((event.mask & (IN_OPEN | IN_CLOSE)) != 0) opened.push_back((event.mask & IN_OPEN) != 0);
    at += sizeof event + event.len;
  }
  return opened;
}

}  // namespace verbena::os
