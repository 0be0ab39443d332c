#include "os/udp_options.h"

#include <netinet/in.h>

#include <cerrno>

namespace verbena::os {

bool set_option(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

Result<Fd> open_udp_socket(bool ipv6) {
  const int raw =
      ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP);
  if (raw < 0 && errno == EAFNOSUPPORT) {
    return fail(Errc::kNotSupported, "the host lacks this IP version", EAFNOSUPPORT);
  }
  Fd fd = VB_TRY(take_fd(raw, "cannot make a UDP socket"));
  if (ipv6 && !set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1)) {
    return system_error(errno, "IPV6_V6ONLY");
  }
  return fd;
}

Result<void> enable_ancillary_data(int fd) {
  bool ok;
  if (is_ipv6_socket(fd)) {
    ok = set_option(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1) &&
         set_option(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1) &&
         set_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  } else {
    ok = set_option(fd, IPPROTO_IP, IP_PKTINFO, 1) && set_option(fd, IPPROTO_IP, IP_RECVTTL, 1) &&
         set_option(fd, IPPROTO_IP, IP_RECVTOS, 1);
  }
  if (!ok) return system_error(errno, "cannot enable the ancillary data of a UDP socket");
  return {};
}

void set_receive_buffer(int fd, int bytes) {
  if (!set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, bytes)) {
    set_option(fd, SOL_SOCKET, SO_RCVBUF, bytes);  // the kernel limits it to net.core.rmem_max
  }
}

bool is_ipv6_socket(int fd) {
  int domain = 0;
  socklen_t bytes = sizeof(domain);
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_INET6;
}

}  // namespace verbena::os
