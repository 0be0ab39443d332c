#include "tap.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>

namespace verbena::wire_bench {

os::Fd open_tap(const std::string& network_namespace, const std::string& name,
                std::string& problem) {
  const auto failed = [&](const std::string& step) {
    problem = step + ": " + std::strerror(errno);
    return os::Fd();
  };
  const os::Fd home(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
  const os::Fd there(::open(network_namespace.c_str(), O_RDONLY | O_CLOEXEC));
  if (!home || !there) return failed(network_namespace);
  if (::setns(there.get(), CLONE_NEWNET) != 0) return failed("entering " + network_namespace);
  // Opened here: its namespace is the opener's.
  os::Fd tap(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  const bool made = tap && ::ioctl(tap.get(), TUNSETIFF, &request) == 0;
  const int error = errno;
  if (::setns(home.get(), CLONE_NEWNET) != 0) return failed("coming back from the namespace");
  errno = error;
  return made ? std::move(tap) : failed("making " + name + " in " + network_namespace);
}

}  // namespace verbena::wire_bench
