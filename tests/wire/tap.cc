#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "os/fd.h"
#include "port.h"

namespace verbena::wire_bench {
namespace {

class Tap final : public Port {
 public:
  explicit Tap(os::Fd fd) : fd_(std::move(fd)) {}

  int fd() const override { return fd_.get(); }
  bool wants_output() const override { return false; }
  bool has_input() const override { return false; }
  std::span<const std::byte> read(std::span<std::byte> buffer) override {
    const ssize_t bytes = ::read(fd_.get(), buffer.data(), buffer.size());
    return buffer.first(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  }
  bool write(std::span<const std::byte> frame) override {
    return ::write(fd_.get(), frame.data(), frame.size()) >= 0;
  }

 private:
  os::Fd fd_;  // non-blocking
};

}  // namespace

std::unique_ptr<Port> open_tap(const std::string& network_namespace, const std::string& name,
                               std::string& problem) {
  const auto failed = [&](const std::string& step) {
    problem = step + ": " + std::strerror(errno);
    return nullptr;
  };
  const os::Fd own_namespace(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
  const os::Fd target_namespace(::open(network_namespace.c_str(), O_RDONLY | O_CLOEXEC));
  if (!own_namespace || !target_namespace) return failed(network_namespace);
  if (::setns(target_namespace.get(), CLONE_NEWNET) != 0)
    return failed("entering " + network_namespace);
  // Opens the device inside the namespace, because the interface is made in the namespace in which
  // the device was opened.
  os::Fd tap(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  const bool created = tap && ::ioctl(tap.get(), TUNSETIFF, &request) == 0;
  const int error = errno;
  if (::setns(own_namespace.get(), CLONE_NEWNET) != 0)
    return failed("coming back from the namespace");
  errno = error;
  if (!created) return failed("making " + name + " in " + network_namespace);
  return std::make_unique<Tap>(std::move(tap));
}

}  // namespace verbena::wire_bench
