#include "os/host_checks.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>

#include "os/address.h"
#include "os/clock.h"
#include "os/directory.h"
#include "os/private_files.h"
#include "os/process.h"
#include "os/roce_port.h"
#include "os/shared_memory.h"
#include "os/system_call.h"
#include "os/udp_options.h"
#include "os/unix_channel.h"

namespace verbena::os {
namespace {

constexpr CheckResult kSuccess{.works = true};
CheckResult failed_with(int error) { return {.works = false, .error = error}; }
CheckResult success_or_errno(bool worked) { return worked ? kSuccess : failed_with(errno); }
CheckResult failed_with(const Error& error) {
  return failed_with(error.code == Errc::kSystem ? error.detail : to_errno(error));
}

// Runs `body`, which makes only system calls, in a child.  Returns the child's exit code, or -1 if
// the child could not run or was killed.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  if (child < 0) return -1;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::uint64_t buffer_bytes(int option, int forced_option, std::uint64_t requested_bytes) {
  const auto fd = open_udp_socket(false);
  if (!fd) return 0;
  const int bytes = static_cast<int>(requested_bytes);
  if (!set_option(fd->get(), SOL_SOCKET, forced_option, bytes)) {
    set_option(fd->get(), SOL_SOCKET, option, bytes);
  }
  int actual_bytes = 0;
  socklen_t size = sizeof(actual_bytes);
  if (::getsockopt(fd->get(), SOL_SOCKET, option, &actual_bytes, &size) != 0) return 0;
  // The kernel reports twice the size that was set.
  return static_cast<std::uint64_t>(actual_bytes) / 2;
}

ResourceLimit limit_of(__rlimit_resource which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return {kUnlimited, kUnlimited};
  const auto number = [](rlim_t value) {
    return value == RLIM_INFINITY ? kUnlimited : std::uint64_t{value};
  };
  return {number(limit.rlim_cur), number(limit.rlim_max)};
}

}  // namespace

const std::uint64_t kWantedReceiveBufferBytes = kReceiveBufferBytes;
const std::uint64_t kWantedSendBufferBytes = kSendBufferBytes;

CheckResult try_shared_memory(std::size_t bytes) {
  const auto memory = create_shared_memory("verbena-doctor", bytes);
  return memory ? kSuccess : failed_with(memory.error());
}

CheckResult try_steering(std::size_t leases) {
  const auto fd = open_udp_socket(false);
  if (!fd) return failed_with(fd.error());
  const SocketAddress address = socket_address(wire::ipv4_gid(0x7f000001), 0, 0);
  if (!set_option(fd->get(), SOL_SOCKET, SO_REUSEPORT, 1) ||
      ::bind(fd->get(), &address.any, size_of(address)) != 0) {
    return failed_with(errno);
  }
  std::vector<Steering> rules;
  for (std::uint32_t i = 1; i <= leases; ++i) rules.push_back({static_cast<std::uint16_t>(i), i});
  const auto attached = attach_steering(fd->get(), rules);
  return attached ? kSuccess : failed_with(attached.error());
}

CheckResult try_segmentation() {
  const auto fd = open_udp_socket(false);
  if (!fd) return failed_with(fd.error());
  return success_or_errno(set_option(fd->get(), IPPROTO_UDP, kUdpSegment, 1024));
}

CheckResult try_pidfd() {
  const auto fd = open_pidfd(::getpid());
  return fd ? kSuccess : failed_with(fd.error());
}

CheckResult try_peer_pidfd() {
  constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return failed_with(errno);
  }
  const Fd one(ends[0]);
  const Fd other(ends[1]);
  int pidfd = -1;
  socklen_t bytes = sizeof(pidfd);
  if (::getsockopt(one.get(), SOL_SOCKET, kPeerPidfd, &pidfd, &bytes) != 0) {
    return failed_with(errno);
  }
  const Fd peer_fd(pidfd);
  return kSuccess;
}

CheckResult try_process_vm_readv() {
  static volatile std::uint64_t word = 17;  // the child finds it at the same address
  const pid_t parent = ::getpid();
  const int result = in_child([&] {
    std::uint64_t copy = 0;
    const iovec to{.iov_base = &copy, .iov_len = sizeof(copy)};
    const iovec from{.iov_base = const_cast<std::uint64_t*>(&word), .iov_len = sizeof(copy)};
    return ::process_vm_readv(parent, &to, 1, &from, 1, 0) == sizeof(copy) ? 0 : errno;
  });
  return result == 0 ? kSuccess : failed_with(result < 0 ? EIO : result);
}

CheckResult try_user_namespace() {
  const int result = in_child([] { return ::unshare(CLONE_NEWUSER) == 0 ? 0 : errno; });
  return result == 0 ? kSuccess : failed_with(result < 0 ? EIO : result);
}

CheckResult try_private_files() {
  const int result = in_child([] {
    const auto error_of = [](const Error& error) { return error.detail != 0 ? error.detail : EIO; };
    if (const auto own = enter_private_mounts(); !own) return error_of(own.error());
    for (const char* directory : {"/sys/class", "/dev"}) {
      const auto opened = mount_private_directory(directory);
      if (!opened) return error_of(opened.error());
    }
    return 0;
  });
  return result == 0 ? kSuccess : failed_with(result < 0 ? EIO : result);
}

CheckResult try_ipv6() {
  const auto fd = open_udp_socket(true);
  if (!fd) return failed_with(fd.error());
  const SocketAddress address = socket_address(Gid{}, 0, 0);
  return success_or_errno(::bind(fd->get(), &address.any, size_of(address)) == 0);
}

CheckResult try_send_to(std::uint16_t port) {
  const auto fd = open_udp_socket(false);
  if (!fd) return failed_with(fd.error());
  const SocketAddress address = socket_address(wire::ipv4_gid(0x7f000001), port, 0);
  const char byte = 0;
  return success_or_errno(
      ::sendto(fd->get(), &byte, 1, MSG_DONTWAIT, &address.any, size_of(address)) == 1);
}

std::uint64_t receive_buffer_bytes(std::uint64_t requested_bytes) {
  return buffer_bytes(SO_RCVBUF, SO_RCVBUFFORCE, requested_bytes);
}
std::uint64_t send_buffer_bytes(std::uint64_t requested_bytes) {
  return buffer_bytes(SO_SNDBUF, SO_SNDBUFFORCE, requested_bytes);
}

std::optional<std::uint64_t> sysctl(const char* path) {
  const auto file = take_fd(::open(path, O_RDONLY | O_CLOEXEC), "open");
  if (!file) return std::nullopt;
  std::array<char, 64> text{};
  const auto bytes = read_some(file->get(), std::as_writable_bytes(std::span(text)));
  std::uint64_t number = 0;
  if (!bytes || std::from_chars(text.data(), text.data() + *bytes, number).ec != std::errc()) {
    return std::nullopt;
  }
  return number;
}

ResourceLimit open_files_limit() { return limit_of(RLIMIT_NOFILE); }
ResourceLimit locked_memory_limit() { return limit_of(RLIMIT_MEMLOCK); }
ResourceLimit file_size_limit() { return limit_of(RLIMIT_FSIZE); }

std::vector<std::string> kernel_rdma_devices() {
  std::vector<std::string> names;
  const Directory directory(::opendir("/sys/class/infiniband"));
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::ranges::sort(names);
  return names;
}

std::string user_name(unsigned uid) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> text{};
  if (::getpwuid_r(uid, &entry, text.data(), text.size(), &found) == 0 && found != nullptr) {
    return entry.pw_name;
  }
  return "user id " + std::to_string(uid);
}

std::optional<Output> run_program(const std::vector<std::string>& command,
                                  const std::vector<std::string>& environment, Time deadline) {
  constexpr std::size_t kTextBytesMax = 65536;
  const auto pointers = [](const std::vector<std::string>& words) {
    std::vector<char*> all;
    for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
    all.push_back(nullptr);
    return all;
  };
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDERR_FILENO);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, command[0].c_str(), &actions, nullptr,
                                  pointers(command).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return std::nullopt;
  write_end.reset();

  Output output;
  bool is_in_time = true;
  std::array<char, 4096> text{};
  const auto wait_in_time = [&](int fd) {
    const auto ready = wait_for(fd, POLLIN, deadline);
    return is_in_time = ready && *ready != 0;
  };
  while (wait_in_time(read_end.get())) {
    const auto bytes = read_some(read_end.get(), std::as_writable_bytes(std::span(text)));
    if (!bytes || *bytes == 0) break;
    output.text.append(text.data(), std::min(*bytes, kTextBytesMax - output.text.size()));
  }
  // The program may continue to run after it has closed its output, so its end is awaited, too.
  const auto process = open_pidfd(child);
  if (is_in_time && process) wait_in_time(process->get());
  if (!is_in_time) ::kill(child, SIGKILL);
  while (::waitpid(child, &output.status, 0) < 0 && errno == EINTR) {
  }
  return is_in_time ? std::optional(std::move(output)) : std::nullopt;
}

}  // namespace verbena::os
