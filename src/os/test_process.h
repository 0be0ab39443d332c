#pragma once

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "base/strong.h"
#include "gtest/gtest.h"
#include "os/fd.h"
#include "wire/ip.h"

// Runs test bodies in a process and a network namespace of their own, for tests of this layer and
// of the agent.  Several people can then test on one machine without sharing UDP port 4791.
namespace verbena::os {

inline constexpr Gid kIpv4Loopback = wire::ipv4_gid(0x7f000001);
inline constexpr Gid kIpv6Loopback = [] {
  Gid gid;
  gid.bytes[15] = std::byte{1};
  return gid;
}();

// Runs `body` in a forked child.  If `body` returns, the result is 0 if all expectations were met,
// else 1.  Otherwise the result is the child's exit code, or 128 + the signal that killed the
// child.
template <class Body>
int run_in_child(Body&& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Moves the process into new namespaces, in which it is root.  Needs no privilege if the host
// allows user namespaces.  Returns false if the process may not do that.
inline bool enter_namespaces(int flags) {
  const std::string uid = "0 " + std::to_string(::geteuid()) + " 1";
  if (::unshare(CLONE_NEWUSER | flags) != 0) return ::unshare(flags) == 0;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << uid;
  return true;
}

inline void bring_loopback_up() {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  EXPECT_EQ(::ioctl(socket.get(), SIOCSIFFLAGS, &request), 0);
}

// Runs `body` in a forked child, in a network namespace whose only interface is the loopback.
// Skips the test if the host does not allow this.
template <class Body>
void in_network_namespace(Body&& body) {
  constexpr int kNotAllowed = 77;
  const int status = run_in_child([&] {
    if (!enter_namespaces(CLONE_NEWNET)) ::_exit(kNotAllowed);
    bring_loopback_up();
    body();
  });
  if (status == kNotAllowed) GTEST_SKIP() << "no network namespaces on this machine";
  EXPECT_EQ(status, 0);
}

}  // namespace verbena::os
