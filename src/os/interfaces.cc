#include "os/interfaces.h"

#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "os/address.h"
#include "os/netlink.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

NetworkLink read_link(const NetlinkMessage& message) {
  const auto info = message.fixed<ifinfomsg>();
  NetworkLink link;
  link.index = static_cast<std::uint32_t>(info.ifi_index);
  const auto name = message.attribute<ifinfomsg>(IFLA_IFNAME);
  const auto* text = reinterpret_cast<const char*>(name.data());
  link.name.assign(text, name.empty() ? 0 : ::strnlen(text, name.size()));
  link.mtu_bytes = value_of<std::uint32_t>(message.attribute<ifinfomsg>(IFLA_MTU));
  const auto mac = message.attribute<ifinfomsg>(IFLA_ADDRESS);
  if (mac.size() == link.mac.size()) std::ranges::copy(mac, link.mac.begin());
  link.loopback = (info.ifi_flags & IFF_LOOPBACK) != 0;
  link.up = (info.ifi_flags & IFF_UP) != 0 && (info.ifi_flags & IFF_RUNNING) != 0;
  return link;
}

Result<std::map<std::uint32_t, NetworkLink>> links(Netlink& netlink) {
  NetlinkRequest<ifinfomsg> request(RTM_GETLINK, NLM_F_DUMP);
  std::map<std::uint32_t, NetworkLink> found;
  for (const NetlinkMessage& message : VB_TRY(netlink.call(request.header()))) {
    if (message.type() != RTM_NEWLINK) continue;
    NetworkLink link = read_link(message);
    found[link.index] = std::move(link);
  }
  return found;
}

std::optional<Gid> gid_in(std::span<const std::byte> attribute) {
  if (attribute.size() == sizeof(in_addr)) return gid_of(value_of<in_addr>(attribute));
  if (attribute.size() == sizeof(in6_addr)) return gid_of(value_of<in6_addr>(attribute));
  return std::nullopt;
}

// Reads those members of an Interface that the address message contains.  Returns std::nullopt for
// an address that cannot be used yet.
std::optional<Interface> read_address(const NetlinkMessage& message) {
  if (message.type() != RTM_NEWADDR) return std::nullopt;
  const auto info = message.fixed<ifaddrmsg>();
  if (info.ifa_family != AF_INET && info.ifa_family != AF_INET6) return std::nullopt;
  const auto wide_flags = message.attribute<ifaddrmsg>(IFA_FLAGS);
  const std::uint32_t flags =
      wide_flags.empty() ? info.ifa_flags : value_of<std::uint32_t>(wide_flags);
  const bool tentative = (flags & IFA_F_TENTATIVE) != 0 && (flags & IFA_F_OPTIMISTIC) == 0;
  if (tentative || (flags & IFA_F_DADFAILED) != 0) return std::nullopt;
  // IFA_LOCAL is our address; IFA_ADDRESS is the peer's address on a point-to-point link.
  auto address = gid_in(message.attribute<ifaddrmsg>(IFA_LOCAL));
  if (!address) address = gid_in(message.attribute<ifaddrmsg>(IFA_ADDRESS));
  if (!address) return std::nullopt;
  Interface found;
  found.address = *address;
  found.index = info.ifa_index;
  found.prefix_bits = info.ifa_prefixlen;
  found.link_local = is_link_local(*address);
  found.deprecated = (flags & IFA_F_DEPRECATED) != 0;
  return found;
}

Result<RouteAnswer> query_route(Netlink& netlink, const Gid& destination, std::optional<Gid> source,
                                std::uint32_t scope) {
  const auto bytes_of = [](const Gid& gid) {
    return std::span(gid.bytes).subspan(wire::is_ipv4(gid) ? 12 : 0);
  };
  const bool ipv4 = wire::is_ipv4(destination);
  NetlinkRequest<rtmsg> request(RTM_GETROUTE, 0);
  request.fixed().rtm_family = ipv4 ? AF_INET : AF_INET6;
  request.fixed().rtm_dst_len = ipv4 ? 32 : 128;
  request.fixed().rtm_flags = RTM_F_LOOKUP_TABLE;
  request.add(RTA_DST, bytes_of(destination));
  if (source) {
    if (wire::is_ipv4(*source) != ipv4) {
      return fail(Errc::kInvalidArgument, "source and destination are of different families");
    }
    request.fixed().rtm_src_len = request.fixed().rtm_dst_len;
    request.add(RTA_SRC, bytes_of(*source));
  }
  if (scope != 0) request.add_u32(RTA_OIF, scope);

  auto answer = netlink.call(request.header());
  if (!answer.has_value()) {
    return fail(Errc::kAddressNotFound, "no route to this address, or none from this source",
                answer.error().detail);
  }
  if (answer->empty() || answer->front().type() != RTM_NEWROUTE) {
    return system_error(EPROTO, "cannot use a netlink socket");
  }
  const NetlinkMessage& route = answer->front();
  const auto info = route.fixed<rtmsg>();
  // For IPv6 the kernel returns such a route.  These are the errors that connect(2) has for it.
  switch (info.rtm_type) {
    case RTN_UNREACHABLE:
      return fail(Errc::kAddressNotFound, "no route to this address", EHOSTUNREACH);
    case RTN_BLACKHOLE: return fail(Errc::kAddressNotFound, "no route to this address", EINVAL);
    case RTN_PROHIBIT: return fail(Errc::kAddressNotFound, "the route is prohibited", EACCES);
    default: break;
  }
  RouteAnswer result;
  result.interface = value_of<std::uint32_t>(route.attribute<rtmsg>(RTA_OIF));
  result.loopback = info.rtm_type == RTN_LOCAL;
  result.gateway = gid_in(route.attribute<rtmsg>(RTA_GATEWAY));
  result.source = source.value_or(gid_in(route.attribute<rtmsg>(RTA_PREFSRC)).value_or(Gid{}));
  const auto metrics = route.attribute<rtmsg>(RTA_METRICS);
  result.mtu = value_of<std::uint32_t>(NetlinkMessage::find(metrics, RTAX_MTU));
  return result;
}

// Returns the interface for packets to the internet, or 0 if there is no route.  Requests a route
// from the kernel instead of reading the main table, because the kernel's lookup is fast even with
// a million routes and follows policy rules.
std::uint32_t default_interface(Netlink& netlink) {
  constexpr Gid kPublicIpv4 = wire::ipv4_gid(0x01010101);
  constexpr Gid kPublicIpv6 = {{std::byte{0x20}}};  // 2000::, the first global address
  for (const Gid& public_address : {kPublicIpv4, kPublicIpv6}) {
    const auto route = query_route(netlink, public_address, std::nullopt, 0);
    if (route.has_value() && !route->loopback) return route->interface;
  }
  return 0;
}

}  // namespace

Result<std::vector<Interface>> interfaces() {
  Netlink netlink = VB_TRY(Netlink::open());
  const auto links_by_index = VB_TRY(links(netlink));
  const std::uint32_t default_index = default_interface(netlink);

  NetlinkRequest<ifaddrmsg> request(RTM_GETADDR, NLM_F_DUMP);
  std::vector<Interface> found;
  for (const NetlinkMessage& message : VB_TRY(netlink.call(request.header()))) {
    auto interface = read_address(message);
    if (!interface) continue;
    const auto link = links_by_index.find(interface->index);
    if (link == links_by_index.end()) continue;  // InterfaceMonitor will report the new link
    interface->name = link->second.name;
    interface->mtu_bytes = link->second.mtu_bytes;
    interface->mac = link->second.mac;
    interface->loopback = link->second.loopback;
    interface->up = link->second.up;
    interface->default_route = interface->index == default_index;
    found.push_back(std::move(*interface));
  }
  std::ranges::stable_sort(found, {}, &Interface::index);
  return found;
}

Result<std::vector<NetworkLink>> network_links() {
  Netlink netlink = VB_TRY(Netlink::open());
  std::vector<NetworkLink> all;
  for (auto& [index, link] : VB_TRY(links(netlink))) all.push_back(link);
  return all;
}

Result<RouteAnswer> route_to(const Gid& destination, std::optional<Gid> source,
                             std::uint32_t scope) {
  Netlink netlink = VB_TRY(Netlink::open());
  RouteAnswer route = VB_TRY(query_route(netlink, destination, source, scope));
  if (route.mtu == 0) {
    NetlinkRequest<ifinfomsg> request(RTM_GETLINK, 0);
    request.fixed().ifi_index = static_cast<int>(route.interface);
    const auto link = VB_TRY(netlink.call(request.header()));
    if (!link.empty()) route.mtu = read_link(link.front()).mtu_bytes;
  }
  return route;
}

Result<InterfaceMonitor> InterfaceMonitor::create() {
  constexpr std::uint32_t kIpv6Rules = 1U << (RTNLGRP_IPV6_RULE - 1);
  Netlink netlink =
      VB_TRY(Netlink::open(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR |
                           RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE | RTMGRP_IPV4_RULE | kIpv6Rules));
  return InterfaceMonitor(netlink.release_fd());
}

bool InterfaceMonitor::drain() {
  bool changed = false;
  std::byte byte;
  for (;;) {
    const long n =
        repeat_call(SYS_recvfrom, fd_.get(), &byte, sizeof(byte), MSG_DONTWAIT, nullptr, nullptr);
    if (n < 0 && errno != ENOBUFS) return changed;  // ENOBUFS: the kernel dropped notifications
    changed = true;
  }
}

}  // namespace verbena::os
