#include "os/multicast.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "os/address.h"
#include "os/fd.h"

namespace verbena::os {
namespace {

int set_membership(int fd, int option, const Gid& group, std::uint32_t interface) {
  const SocketAddress address = socket_address(group, 0, interface);
  group_req request{};
  request.gr_interface = interface;
  std::memcpy(&request.gr_group, &address, size_of(address));
  const int level = wire::is_ipv4(group) ? IPPROTO_IP : IPPROTO_IPV6;
  return ::setsockopt(fd, level, option, &request, sizeof(request)) == 0 ? 0 : errno;
}

}  // namespace

Result<void> join_group(int fd, const Gid& group, std::uint32_t interface) {
  const int error = set_membership(fd, MCAST_JOIN_GROUP, group, interface);
  if (error == 0 || error == EADDRINUSE) return {};
  if (error == ENOBUFS || error == ENOMEM) {
    return fail(Errc::kNoResources, "the host's limit of multicast groups per socket is reached");
  }
  return system_error(error, "cannot join a multicast group");
}

Result<void> leave_group(int fd, const Gid& group, std::uint32_t interface) {
  const int error = set_membership(fd, MCAST_LEAVE_GROUP, group, interface);
  if (error == 0) return {};
  if (error == EADDRNOTAVAIL) return fail(Errc::kAddressNotFound, "not a member of this group");
  return system_error(error, "cannot leave a multicast group");
}

}  // namespace verbena::os
