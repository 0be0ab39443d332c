#include "os/neighbours.h"

#include <linux/neighbour.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>

#include "os/address.h"
#include "os/netlink.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

constexpr std::uint16_t kDiscardPort = 9;

std::span<const std::byte> bytes_of(const Gid& gid) {
  return std::span(gid.bytes).subspan(wire::is_ipv4(gid) ? 12 : 0);
}

}  // namespace

Result<NeighbourState> neighbour_state(const Neighbour& neighbour) {
  if (is_multicast(neighbour.address)) return NeighbourState::kReachable;
  Netlink netlink = VB_TRY(Netlink::open());
  NetlinkRequest<ndmsg> request(RTM_GETNEIGH, 0);
  request.fixed().ndm_family = wire::is_ipv4(neighbour.address) ? AF_INET : AF_INET6;
  request.fixed().ndm_ifindex = static_cast<int>(neighbour.interface);
  request.add(NDA_DST, bytes_of(neighbour.address));
  const auto answer = netlink.call(request.header());
  if (!answer) {
    if (answer.error().detail == ENOENT) return NeighbourState::kUnknown;
    return std::unexpected(answer.error());
  }
  if (answer->empty() || answer->front().type() != RTM_NEWNEIGH) {
    return system_error(EPROTO, "cannot use a netlink socket");
  }
  const auto state = answer->front().fixed<ndmsg>().ndm_state;
  if ((state & NUD_INCOMPLETE) != 0) return NeighbourState::kResolving;
  if ((state & NUD_FAILED) != 0) return NeighbourState::kUnreachable;
  return state == NUD_NONE ? NeighbourState::kUnknown : NeighbourState::kReachable;
}

Result<void> resolve_neighbour(const Gid& destination, const Gid& source, std::uint32_t interface) {
  const bool ipv4 = wire::is_ipv4(destination);
  const Fd socket =
      VB_TRY(take_fd(::socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0),
                     "cannot make a UDP socket"));
  // The datagram must not go beyond the next hop.
  const int hops = 1;
  if (::setsockopt(socket.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6,
                   ipv4 ? IP_TTL : IPV6_UNICAST_HOPS, &hops, sizeof hops) != 0) {
    return system_error(errno, "cannot set the hop limit");
  }
  const SocketAddress from = socket_address(source, 0, interface);
  if (::bind(socket.get(), &from.any, size_of(from)) != 0) {
    return system_error(errno, "cannot bind to the source address");
  }
  const SocketAddress to = socket_address(destination, kDiscardPort, interface);
  if (repeat_call(SYS_sendto, socket.get(), nullptr, std::size_t{0}, MSG_DONTWAIT, &to,
                  size_of(to)) < 0) {
    return system_error(errno, "cannot send to the address");
  }
  return {};
}

Result<NeighbourMonitor> NeighbourMonitor::create() {
  Netlink netlink = VB_TRY(Netlink::open(RTMGRP_NEIGH));
  return NeighbourMonitor(netlink.release_fd());
}

void NeighbourMonitor::drain() {
  std::byte byte;
  for (;;) {
    const long n =
        repeat_call(SYS_recvfrom, fd_.get(), &byte, sizeof(byte), MSG_DONTWAIT, nullptr, nullptr);
    if (n < 0 && errno != ENOBUFS) return;  // ENOBUFS: the kernel dropped notifications
  }
}

}  // namespace verbena::os
