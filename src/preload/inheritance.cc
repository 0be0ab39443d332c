#include "preload/inheritance.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "os/system_call.h"
#include "preload/change_over.h"
#include "preload/epolls.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/service_link.h"

namespace verbena::preload::inheritance {
namespace {

constexpr const char* kVariableName = "VERBENA_SOCKETS_INHERITED";
constexpr std::string_view kVariable(kVariableName);

bool is_own_variable(std::string_view entry) {
  return entry.starts_with(kVariable) && entry.substr(kVariable.size()).starts_with('=');
}

// Parses the variable's value, a list of hexadecimal numbers.  Stops at invalid text, because the
// value may come from another program.
std::set<std::uint64_t> parse(std::string_view value) {
  std::set<std::uint64_t> cookies;
  while (cookies.size() < Names::kMax) {
    std::uint64_t cookie = 0;
    const auto [end, failed] =
        std::from_chars(value.data(), value.data() + value.size(), cookie, 16);
    if (failed != std::errc{}) break;
    cookies.insert(cookie);
    value.remove_prefix(static_cast<std::size_t>(end - value.data()));
    if (!value.starts_with(',')) break;
    value.remove_prefix(1);
  }
  return cookies;
}

// Continues the descriptor's connection if its cookie is one of `cookies`.  `first_descriptors`
// maps each cookie to the first descriptor of that connection.
void continue_if_named(int fd, const std::set<std::uint64_t>& cookies,
                       std::map<std::uint64_t, int>& first_descriptors) {
  const std::uint64_t cookie = service_link::cookie_of(fd);
  if (!cookies.contains(cookie)) return;
  if (const auto first = first_descriptors.find(cookie); first != first_descriptors.end()) {
    if (const auto socket = SocketTable::find(first->second)) SocketTable::add_copy(*socket, fd);
    return epolls::on_continued(fd);
  }
  first_descriptors[cookie] = fd;
  if (Socket* socket = SocketTable::add(fd)) {
    if (continue_connection(fd, *socket)) epolls::on_continued(fd);
  } else {
    leaving::reset(fd);
  }
}

}  // namespace

bool continue_connection(int fd, Socket& socket) {
  socket.nonblocking.store((next().fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
  const auto memory = service_link::request_memory(fd, socket);
  if (memory && change_over::continue_stream(socket, memory->view())) return true;
  socket.state.store(Socket::State::kTcpOnly);
  leaving::reset(fd);
  return false;
}

bool is_inherited(int fd, const Socket& socket) {
  return socket.is_passed_to_spawned.load(std::memory_order_relaxed) ||
         (next().fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
}

bool Names::add(Socket& socket) {
  if (count_ == kMax) return false;
  if (count_ == 0) {
    used_ = static_cast<std::size_t>(std::copy(kVariable.begin(), kVariable.end(), text_.begin()) -
                                     text_.begin());
    text_[used_++] = '=';
  } else {
    text_[used_++] = ',';
  }
  char* const end =
      std::to_chars(text_.data() + used_, text_.data() + text_.size() - 1, socket.cookie, 16).ptr;
  used_ = static_cast<std::size_t>(end - text_.data());
  text_[used_] = '\0';
  sockets_[count_++] = &socket;
  return true;
}

void prepare(os::ProgramKind next_program, const posix_spawn_file_actions_t* actions,
             Names& names) {
  if (next_program == os::ProgramKind::kNone) return;
  const bool has_library = next_program == os::ProgramKind::kWithLibrary;
  const int error = errno;
  SocketTable::for_each(0, kDescriptorsMax - 1, [&](int fd, Socket& socket) {
    if (!is_inherited(fd, socket)) return;
    const bool keeps_ring = has_library && socket.must_use_ring.load() && socket.uses_stream();
    if (!keeps_ring && leaving::use_only_tcp(fd, socket, stream::Reason::kExec)) return;
    bool is_named = false;
    names.for_each([&](const Socket& one) { is_named |= &one == &socket; });
    if (is_named) return;
    if (has_library && service_link::request_memory(fd, socket) && names.add(socket)) return;
    const bool is_stdin =
        fd == STDIN_FILENO || (actions != nullptr && socket.stdin_actions.load() == actions);
    if (has_library || is_stdin) leaving::reset(fd);
  });
  errno = error;
}

std::size_t environment_entries(char* const* environment) {
  std::size_t count = 0;
  while (environment != nullptr && environment[count] != nullptr) ++count;
  return count + 2;
}

void copy_environment(char* const* environment, const Names& names, char** out) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    if (!is_own_variable(*environment)) *out++ = *environment;
  }
  *out++ = const_cast<char*>(names.variable());
  *out = nullptr;
}

void continue_connections() {
  const char* const value = ::secure_getenv(kVariableName);
  if (value == nullptr) return;
  const std::set<std::uint64_t> cookies = parse(value);
  ::unsetenv(kVariableName);
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir("/proc/self/fd"), ::closedir);
  std::set<int> descriptors;
  while (const dirent* entry = list ? ::readdir(list.get()) : nullptr) {
    int fd = -1;
    const std::string_view name(entry->d_name);
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd >= 0 && fd != ::dirfd(list.get())) descriptors.insert(fd);
  }
  std::map<std::uint64_t, int> first_descriptors;
  for (const int fd : descriptors) continue_if_named(fd, cookies, first_descriptors);
}

}  // namespace verbena::preload::inheritance
