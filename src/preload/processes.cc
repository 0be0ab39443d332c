#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>

#include "preload/change_over.h"
#include "preload/end_lock.h"
#include "preload/epolls.h"
#include "preload/export.h"
#include "preload/inheritance.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/required.h"
#include "preload/sandbox.h"
#include "preload/service_link.h"
#include "preload/socket_table.h"
#include "preload/waits.h"

// Defines the functions that create processes, replace the program of a process, or end a process:
// fork(), exec() and similar functions.  Keeps the connections working in these cases.
namespace verbena::preload {
namespace {

// Holds the TcpCounts of connections that several processes have.  The process that has mapped this
// memory shares it with all its descendants.
constexpr std::size_t kSharedMax = kSocketsMax;
struct SharedCounts {
  std::atomic<std::uint32_t> next_index{0};
  std::array<TcpCounts, kSharedMax> counts{};
};
constinit SharedCounts* shared_counts = nullptr;

// Reserves a TcpCounts that no process uses.  Returns nullptr if it finds none.
TcpCounts* take_shared_counts() {
  constexpr int kTries = 256;
  for (int i = 0; shared_counts != nullptr && i < kTries; ++i) {
    TcpCounts& one = shared_counts->counts[shared_counts->next_index.fetch_add(1) % kSharedMax];
    std::uint32_t none = 0;
    if (one.processes.compare_exchange_strong(none, 1)) return &one;
  }
  return nullptr;
}

// Counts the child among the processes that have a connection.  Moves the connection's counts to
// memory that the child will share, unless they are there already.  Returns false if it finds no
// free TcpCounts.
bool share_counts(Socket& socket) {
  TcpCounts* counts = socket.counts.load();
  if (counts == &socket.own_counts) {
    TcpCounts* common = take_shared_counts();
    if (common == nullptr) return false;
    common->sent.store(0);
    common->received.store(0);
    common->stays_on_tcp.store(false);
    // Two processes are counted first, so that the connection does not change over before its
    // counts have been moved.
    common->processes.fetch_add(1);
    if (socket.counts.compare_exchange_strong(counts, common)) return true;
    common->processes.store(0);  // another thread that also forks has moved the counts already
  }
  counts->processes.fetch_add(1);
  return true;
}

// Counts the child of the coming fork among the processes that have the connection.
void share(int fd, Socket& socket) {
  socket.is_shared.store(true);
  if (socket.state.load() == Socket::State::kTcpOnly) return;
  if (!socket.uses_stream()) {
    if (!share_counts(socket)) (void)leaving::use_only_tcp(fd, socket, stream::Reason::kOther);
    // If another thread changes the connection over now, either that thread sees that the child has
    // the socket as well, or this thread sees the change.
    while (socket.state.load() == Socket::State::kChangingOver) {
    }
    if (!socket.uses_stream()) socket.move_own_counts();
  }
  if (socket.uses_stream()) socket.holders().fetch_add(1);
}

// Numbers the calls of for_each_socket().  Each call skips the sockets whose last_visit is the
// number of the call, because it has visited them already.
constinit std::atomic<std::uint32_t> last_call_number{0};

// Calls visit(fd, socket) once for each socket, even if it has several descriptors.
template <class Visit>
void for_each_socket(Visit visit) {
  const std::uint32_t call_number = last_call_number.fetch_add(1) + 1;
  SocketTable::for_each(0, kDescriptorsMax - 1, [&](int fd, Socket& socket) {
    if (socket.last_visit.exchange(call_number) != call_number) visit(fd, socket);
  });
}

// True if the process that forks may have other threads.
constinit std::atomic<bool> may_have_threads{false};

void before_fork() {
  may_have_threads.store(__libc_single_threaded == 0);
  for_each_socket([](int fd, Socket& socket) { share(fd, socket); });
}

// Prepares the connections for their use in the child.  Only the parent has offered them to the
// service, so the child offers them again.  It offers connections that must use the ring at once:
// the peer sends no byte before the change over, so without the offer the child could wait for ever
// in poll().
void after_fork_in_child() {
  // If this thread was the only one, a reference of a call belongs to this thread: a signal handler
  // has forked, and the child continues the call that the handler has interrupted.
  if (may_have_threads.load()) SocketTable::after_fork_in_child();
  EndLock::after_fork_in_child();
  waits::after_fork_in_child();
  epolls::after_fork_in_child();
  service_link::after_fork_in_child();
  for_each_socket([](int fd, Socket& socket) {
    // In the parent, another thread may have set kChangingOver just now.  That thread does not
    // exist in the child.
    for (auto state : {Socket::State::kOffered, Socket::State::kChangingOver}) {
      socket.state.compare_exchange_strong(state, Socket::State::kNew);
    }
    socket.calls_on_tcp.store(0);
    required::offer(fd, socket);
  });
}

// Undoes the counting of share() for all sockets, because there is no child.
void after_failed_fork() {
  for_each_socket([](int, Socket& socket) {
    if (socket.state.load() == Socket::State::kTcpOnly) return;
    if (socket.uses_stream()) {
      socket.holders().fetch_sub(1);
    } else if (TcpCounts* counts = socket.counts.load(); counts != &socket.own_counts) {
      counts->processes.fetch_sub(1);
    }
  });
}

pid_t fork() {
  const pid_t pid = next().fork();
  if (pid < 0) {
    const int error = errno;
    after_failed_fork();
    errno = error;
  }
  return pid;
}

void map_shared_counts() {
  void* memory = ::mmap(nullptr, sizeof(SharedCounts), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) shared_counts = static_cast<SharedCounts*>(memory);
}

void leave_shared_counts(Socket& socket) {
  TcpCounts* counts = socket.counts.load();
  if (counts != &socket.own_counts) counts->processes.fetch_sub(1);
}
void join_shared_counts(Socket& socket) {
  TcpCounts* counts = socket.counts.load();
  if (counts != &socket.own_counts) counts->processes.fetch_add(1);
}

// Prepares the connections for exec(), which replaces the program of this process.  The new program
// has only the connections that it inherits.
class Exec {
 public:
  explicit Exec(os::ProgramKind next_program) {
    inheritance::prepare(next_program, nullptr, names_);
    if (next_program != os::ProgramKind::kNone) close_others();
    for_each_socket([](int, Socket& socket) { leave_shared_counts(socket); });
  }
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;
  // The destructor runs only if exec() has failed.
  ~Exec() {
    for_each_socket([](int, Socket& socket) { join_shared_counts(socket); });
    while (closed_count_ > 0) {
      const ClosedConnection& one = closed_[--closed_count_];
      change_over::rejoin_after_failed_exec(one.fd, *one.socket, one.before);
    }
  }

  const inheritance::Names& names() const { return names_; }

 private:
  struct ClosedConnection {
    int fd;
    Socket* socket;
    linger before;
  };
  // If there are more connections, their peers see the same as if the process were killed.
  static constexpr std::size_t kClosedMax = 256;

  // Ends the connections that the next program does not inherit.  The kernel will close their
  // descriptors, but it cannot handle unread bytes in a ring.
  void close_others() {
    SocketTable::for_each(0, kDescriptorsMax - 1,
                          [](int, Socket& socket) { socket.survives_exec.store(false); });
    SocketTable::for_each(0, kDescriptorsMax - 1, [](int fd, Socket& socket) {
      if (inheritance::is_inherited(fd, socket)) socket.survives_exec.store(true);
    });
    for_each_socket([this](int fd, Socket& socket) {
      if (socket.survives_exec.load() || !socket.uses_stream() || closed_count_ == kClosedMax)
        return;
      closed_[closed_count_++] = {fd, &socket, change_over::leave_before_exec(fd, socket)};
    });
  }

  inheritance::Names names_{};
  std::array<ClosedConnection, kClosedMax> closed_;
  std::size_t closed_count_ = 0;
};

// Prepares the connections for posix_spawn(), which starts a program in a new process.  The new
// process and this process share the connections that the new process inherits.
class Spawn {
 public:
  explicit Spawn(os::ProgramKind program, const posix_spawn_file_actions_t* actions = nullptr) {
    inheritance::prepare(program, actions, names_);
    names_.for_each([](Socket& socket) {
      socket.is_shared.store(true);
      socket.holders().fetch_add(1);
    });
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  const inheritance::Names& names() const { return names_; }
  // Call this with the result of posix_spawn(); it returns that result.  After an error there is no
  // new process.
  int ended(int error) const {
    if (error != 0) names_.for_each([](Socket& socket) { socket.holders().fetch_sub(1); });
    return error;
  }

 private:
  inheritance::Names names_{};
};

[[gnu::destructor]] void at_exit() {
  for_each_socket([](int fd, Socket& socket) { change_over::close(fd, socket); });
}

[[gnu::constructor]] void prepare() {
  next();
  map_shared_counts();
  required::prepare();
  service_link::prepare();
  ::pthread_atfork(before_fork, nullptr, after_fork_in_child);
  inheritance::continue_connections();
}

}  // namespace
}  // namespace verbena::preload

using verbena::preload::next;
using verbena::preload::SocketTable;
namespace preload = verbena::preload;

namespace {

using Strings = char* const*;

// Counts the arguments of an execl() function, up to the null pointer.
std::size_t count_arguments(const char* first, va_list arguments) {
  std::size_t count = 0;
  for (const char* word = first; word != nullptr; word = va_arg(arguments, const char*)) ++count;
  return count;
}

// Replaces the variable `environment` by a copy that also names the connections to continue.
#define VB_ADD_NAMES(names, environment)                                                \
  if (!(names).empty()) {                                                               \
    const std::size_t entries = preload::inheritance::environment_entries(environment); \
    auto** copy = static_cast<char**>(alloca(entries * sizeof(char*)));                 \
    preload::inheritance::copy_environment(environment, names, copy);                   \
    (environment) = copy;                                                               \
  }

}  // namespace

VB_EXPORT int execve(const char* path, Strings argv, Strings environment) noexcept {
  const preload::Exec exec(
      verbena::os::program_kind(path, environment, preload::inheritance::kLibrary));
  VB_ADD_NAMES(exec.names(), environment)
  return next().execve(path, argv, environment);
}
VB_EXPORT int execv(const char* path, Strings argv) noexcept { return execve(path, argv, environ); }
VB_EXPORT int execvpe(const char* file, Strings argv, Strings environment) noexcept {
  const preload::Exec exec(
      verbena::os::search_program_kind(file, environment, preload::inheritance::kLibrary));
  VB_ADD_NAMES(exec.names(), environment)
  return next().execvpe(file, argv, environment);
}
VB_EXPORT int execvp(const char* file, Strings argv) noexcept {
  return execvpe(file, argv, environ);
}
VB_EXPORT int fexecve(int fd, Strings argv, Strings environment) noexcept {
  std::array<char, 32> path{"/proc/self/fd/"};
  *std::to_chars(path.data() + 14, path.data() + 31, fd).ptr = '\0';
  const preload::Exec exec(
      verbena::os::program_kind(path.data(), environment, preload::inheritance::kLibrary));
  VB_ADD_NAMES(exec.names(), environment)
  return next().fexecve(fd, argv, environment);
}

VB_EXPORT int execveat(int directory, const char* path, Strings argv, Strings environment,
                       int flags) noexcept {
  if (*path == '\0' && (flags & AT_EMPTY_PATH) != 0) return fexecve(directory, argv, environment);
  std::array<char, PATH_MAX> from_directory;
  const char* full_path = path;
  if (*path != '/' && directory != AT_FDCWD) {
    ::snprintf(from_directory.data(), from_directory.size(), "/proc/self/fd/%d/%s", directory,
               path);
    full_path = from_directory.data();
  }
  const preload::Exec exec(
      verbena::os::program_kind(full_path, environment, preload::inheritance::kLibrary));
  VB_ADD_NAMES(exec.names(), environment)
  return next().execveat(directory, path, argv, environment, flags);
}

// The execl() functions do the same as the execv() functions, but take the program's arguments as
// arguments of their own.
#define VB_EXECL(call, with_environment)                                           \
  va_list arguments;                                                               \
  va_start(arguments, first);                                                      \
  const std::size_t count = count_arguments(first, arguments);                     \
  va_end(arguments);                                                               \
  auto** argv = static_cast<char**>(alloca((count + 1) * sizeof(char*)));          \
  va_start(arguments, first);                                                      \
  argv[0] = const_cast<char*>(first);                                              \
  for (std::size_t i = 1; i <= count; ++i) argv[i] = va_arg(arguments, char*);     \
  Strings environment = (with_environment) ? va_arg(arguments, Strings) : environ; \
  va_end(arguments);                                                               \
  return call(path, argv, environment)

VB_EXPORT int execl(const char* path, const char* first, ...) noexcept { VB_EXECL(execve, false); }
VB_EXPORT int execle(const char* path, const char* first, ...) noexcept { VB_EXECL(execve, true); }
VB_EXPORT int execlp(const char* path, const char* first, ...) noexcept {
  VB_EXECL(execvpe, false);
}

VB_EXPORT int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                          const posix_spawnattr_t* attributes, Strings argv, Strings environment) {
  const preload::Spawn spawn(
      verbena::os::program_kind(path, environment, preload::inheritance::kLibrary), actions);
  VB_ADD_NAMES(spawn.names(), environment)
  return spawn.ended(next().posix_spawn(pid, path, actions, attributes, argv, environment));
}
VB_EXPORT int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, Strings argv, Strings environment) {
  const preload::Spawn spawn(
      verbena::os::search_program_kind(file, environment, preload::inheritance::kLibrary), actions);
  VB_ADD_NAMES(spawn.names(), environment)
  return spawn.ended(next().posix_spawnp(pid, file, actions, attributes, argv, environment));
}
// Forgets older file actions that had the same address.
VB_EXPORT int posix_spawn_file_actions_init(posix_spawn_file_actions_t* actions) noexcept {
  SocketTable::for_each(0, verbena::preload::kDescriptorsMax - 1,
                        [actions](int, preload::Socket& socket) {
                          const posix_spawn_file_actions_t* older = actions;
                          socket.stdin_actions.compare_exchange_strong(older, nullptr);
                        });
  return next().posix_spawn_file_actions_init(actions);
}
// Records that the new process inherits the copy, even if exec() would close the original
// descriptor.
VB_EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd,
                                               int copy) noexcept {
  if (const auto socket = SocketTable::find(fd)) {
    socket->is_passed_to_spawned.store(true);
    if (copy == STDIN_FILENO) socket->stdin_actions.store(actions);
  }
  return next().posix_spawn_file_actions_adddup2(actions, fd, copy);
}

// The C library starts the shell by calls that this library does not wrap, so the connections go
// back to TCP first.
VB_EXPORT int system(const char* command) {
  const preload::Spawn spawn(verbena::os::ProgramKind::kWithoutLibrary);
  return next().system(command);
}
VB_EXPORT FILE* popen(const char* command, const char* mode) {
  const preload::Spawn spawn(verbena::os::ProgramKind::kWithoutLibrary);
  return next().popen(command, mode);
}

// vfork() works as fork(), because the child of a real vfork() shares the memory of this library.
// If such a child closed a descriptor before exec(), this library would stop tracking the parent's
// descriptor as well.
VB_EXPORT pid_t vfork() noexcept { return preload::fork(); }
VB_EXPORT pid_t fork() noexcept { return preload::fork(); }

VB_EXPORT void _exit(int status) {
  preload::at_exit();
  ::syscall(SYS_exit_group, status);
  __builtin_unreachable();
}
VB_EXPORT void _Exit(int status) noexcept { _exit(status); }

// descriptors.cc defines this function.  The header of glibc 2.36 does not declare it for C++.
extern "C" int pidfd_getfd(int process, int fd, unsigned flags) noexcept;

// Some programs make these system calls by syscall(), not by the C library's functions for them.
// The caller may pass fewer than six arguments.  In a variadic function it would be undefined to
// read more arguments than were passed.  So this function has six parameters, as in the C library,
// and those that were not passed have the values that happen to be in the registers.
VB_EXPORT long syscall_of_six(long number, long a0, long a1, long a2, long a3, long a4,
                              long a5) noexcept __asm__("syscall");
long syscall_of_six(long number, long a0, long a1, long a2, long a3, long a4, long a5) noexcept {
  switch (number) {
    case SYS_close: return close(static_cast<int>(a0));
    case SYS_close_range:
      return close_range(static_cast<unsigned>(a0), static_cast<unsigned>(a1),
                         static_cast<int>(a2));
    case SYS_pidfd_getfd:
      return pidfd_getfd(static_cast<int>(a0), static_cast<int>(a1), static_cast<unsigned>(a2));
    case SYS_seccomp:
      preload::sandbox::before_seccomp(static_cast<unsigned long>(a0), a2 != 0);
      break;
    case SYS_prctl:
      if (a0 == PR_SET_SECCOMP) {
        preload::sandbox::before_prctl(static_cast<unsigned long>(a1), a2 != 0);
      }
      break;
    default: break;
  }
  return next().syscall(number, a0, a1, a2, a3, a4, a5);
}
