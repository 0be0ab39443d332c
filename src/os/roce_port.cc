#include "os/roce_port.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "os/address.h"
#include "os/multicast.h"
#include "os/system_call.h"
#include "os/udp_options.h"

namespace verbena::os {
namespace {

constexpr std::uint16_t kRangesEnd = 0xfff;  // 0 and 0xfff are never leased

Result<void> set_port_options(int fd, bool ipv6) {
  set_receive_buffer(fd, kReceiveBufferBytes);
  VB_TRY_VOID(enable_ancillary_data(fd));
  // IP_MULTICAST_ALL is on by default.  Then every socket of the SO_REUSEPORT group would get a
  // copy of a multicast packet if any of these sockets had joined the multicast group.
  const bool ok = ipv6 ? set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0)
                       : set_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
  if (!ok) return system_error(errno, "IP_MULTICAST_ALL");
  // Linux soft-RoCE and adapters send UDP checksum 0, which IPv6 refuses by default.
  if (ipv6 && !set_option(fd, IPPROTO_UDP, kUdpNoCheck6Rx, 1)) {
    return system_error(errno, "UDP_NO_CHECK6_RX");
  }
  return {};
}

SocketAddress local_address(const RocePort::Options& options, bool ipv6) {
  if (options.address) return socket_address(*options.address, options.port, options.interface);
  return socket_address(ipv6 ? Gid{} : wire::ipv4_gid(0), options.port, 0);
}

// Opens and binds a socket of the port.  The filter numbers the sockets in the order in which they
// were bound.
Result<Fd> open_bound_socket(const RocePort::Options& options, bool ipv6, bool is_first) {
  Fd fd = VB_TRY(open_udp_socket(ipv6));
  VB_TRY_VOID(set_port_options(fd.get(), ipv6));
  if (!is_first && !set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1)) {
    return system_error(errno, "SO_REUSEPORT");
  }
  const SocketAddress address = local_address(options, ipv6);
  if (::bind(fd.get(), &address.any, size_of(address)) != 0) {
    if (errno == EADDRINUSE) return fail(Errc::kAddressInUse, "the UDP port is in use", EADDRINUSE);
    if (errno == EADDRNOTAVAIL) {
      return fail(Errc::kAddressNotFound, "no such address on this host", EADDRNOTAVAIL);
    }
    return system_error(errno, "cannot bind the UDP port");
  }
  // Binding without SO_REUSEPORT has proved that no other process has the port.  From now on, our
  // next sockets may share it.
  if (is_first && !set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1)) {
    return system_error(errno, "SO_REUSEPORT");
  }
  return fd;
}

std::size_t drain_socket(int fd) {
  std::size_t packets = 0;
  // The limit ends the loop during a flood of packets.  A receive buffer never contains more
  // packets.
  constexpr std::size_t kPacketsMax = 100'000;
  while (fd >= 0 && packets < kPacketsMax) {
    std::byte byte;
    const long n = repeat_call(SYS_recvfrom, fd, &byte, sizeof(byte), MSG_DONTWAIT | MSG_TRUNC,
                               nullptr, nullptr);
    if (n < 0) break;
    ++packets;
  }
  return packets;
}

}  // namespace

// ---- opening ------------------------------------------------------------------------------------

Result<std::unique_ptr<RocePort>> RocePort::open(const Options& options, std::string& problem) {
  std::unique_ptr<RocePort> port(new RocePort(options));
  VB_TRY_VOID(port->open_agent_sockets(problem));
  return port;
}

Result<void> RocePort::open_agent_sockets(std::string& problem) {
  Slot slot;
  for (const bool ipv6 : {false, true}) {
    if (options_.address && wire::is_ipv4(*options_.address) == ipv6) continue;
    auto fd = open_bound_socket(options_, ipv6, true);
    if (fd.has_value()) {
      (ipv6 ? slot.ipv6 : slot.ipv4) = std::move(*fd);
      continue;
    }
    if (fd.error().code == Errc::kAddressInUse) {
      slot.ipv4.reset();  // otherwise this process would be found as the holder
      problem = "UDP port " + std::to_string(options_.port) + " is held by " +
                udp_port_holder(options_.port).text;
    }
    const bool lacks_family =
        fd.error().code == Errc::kNotSupported || fd.error().code == Errc::kAddressNotFound;
    if (!lacks_family || options_.address) return std::unexpected(fd.error());
  }
  if (!slot.ipv4 && !slot.ipv6)
    return fail(Errc::kNotSupported, "the host has neither IPv4 nor IPv6");
  slots_.push_back(std::move(slot));
  return {};
}

// ---- leases -------------------------------------------------------------------------------------

Result<RocePort::Lease> RocePort::lease(Random& random, std::span<const std::uint16_t> avoid) {
  VB_CHECK(avoid.size() <= kAvoidMax);
  if (lease_count_ == kLeasesMax)
    return fail(Errc::kNoResources, "too many QPN ranges are leased (kLeasesMax)");
  const std::uint16_t index = VB_TRY(provide_free_slot());
  Slot& slot = slots_[index];

  Lease lease;
  do {
    lease.range = static_cast<std::uint16_t>(1 + random.below(kRangesEnd - 1));
  } while (slot_of_range_[lease.range] != 0 ||
           std::ranges::find(avoid, lease.range) != avoid.end());
  if (slot.ipv4) lease.ipv4 = VB_TRY(slot.ipv4.duplicate());
  if (slot.ipv6) lease.ipv6 = VB_TRY(slot.ipv6.duplicate());

  drain(slot);
  slot.range = lease.range;
  if (auto attached = attach_filters(); !attached.has_value()) {
    slot.range = 0;
    (void)attach_filters();  // restores the filter of a family that accepted the new one
    return std::unexpected(attached.error());
  }
  std::erase(free_slots_, index);
  slot_of_range_[lease.range] = index;
  ++lease_count_;
  return lease;
}

// Returns a drained slot.  If there is none, opens a new slot and adds it to free_slots_.
Result<std::uint16_t> RocePort::provide_free_slot() {
  if (!free_slots_.empty()) return free_slots_.back();
  const auto index = static_cast<std::uint16_t>(slots_.size());
  // If the IPv6 socket cannot be opened, closing the IPv4 one is harmless: it is the last of its
  // group.
  Slot slot;
  if (slots_[0].ipv4) slot.ipv4 = VB_TRY(open_bound_socket(options_, false, false));
  if (slots_[0].ipv6) slot.ipv6 = VB_TRY(open_bound_socket(options_, true, false));
  slots_.push_back(std::move(slot));
  free_slots_.push_back(index);
  return index;
}

Result<void> RocePort::release(std::uint16_t range) {
  Slot* slot = slot_of(range);
  if (slot == nullptr) return fail(Errc::kBadHandle, "this QPN range is not leased");
  for (const Membership& m : slot->memberships) {
    const bool ipv4 = wire::is_ipv4(m.group);
    // leave_group() fails if the interface was removed, but then the kernel has removed the
    // membership, too.
    (void)leave_group(ipv4 ? slot->ipv4.get() : slot->ipv6.get(), m.group, m.interface);
  }
  slot->memberships.clear();
  slot->range = 0;
  if (auto attached = attach_filters(); !attached.has_value()) {
    slot->range = range;
    (void)attach_filters();
    return attached;
  }
  drain(*slot);
  free_slots_.push_back(std::exchange(slot_of_range_[range], std::uint16_t{0}));
  --lease_count_;
  return {};
}

void RocePort::drain(const Slot& slot) {
  drained_ += drain_socket(slot.ipv4.get()) + drain_socket(slot.ipv6.get());
}

RocePort::Slot* RocePort::slot_of(std::uint16_t range) {
  if (range >= slot_of_range_.size() || slot_of_range_[range] == 0) return nullptr;
  return &slots_[slot_of_range_[range]];
}

// ---- multicast ----------------------------------------------------------------------------------

Result<void> RocePort::set_members(std::uint16_t range, const Gid& group,
                                   std::span<const std::uint32_t> interfaces) {
  Slot* slot = slot_of(range);
  if (slot == nullptr) return fail(Errc::kBadHandle, "this QPN range is not leased");
  // The destination of multicast packets is the group's address, but these sockets receive only
  // packets to the one address that they are bound to.
  if (options_.address) return fail(Errc::kNotSupported, "the port is open for only one address");
  const Fd& fd = wire::is_ipv4(group) ? slot->ipv4 : slot->ipv6;
  if (!fd) return fail(Errc::kNotSupported, "the host lacks this IP version");

  std::erase_if(slot->memberships, [&](const Membership& m) {
    if (m.group != group || std::ranges::find(interfaces, m.interface) != interfaces.end()) {
      return false;
    }
    (void)leave_group(fd.get(), group, m.interface);  // fails if the interface was removed
    return true;
  });
  const auto joined = join_all(*slot, fd.get(), group, interfaces);
  if (auto attached = attach_filters(); !attached) return attached;
  return joined;
}

Result<void> RocePort::join_all(Slot& slot, int fd, const Gid& group,
                                std::span<const std::uint32_t> interfaces) {
  const std::size_t old_count = slot.memberships.size();
  Result<void> last_error;
  bool any_joined = false;
  for (const std::uint32_t interface : interfaces) {
    // Joins even if the socket is a member, because the interface may have been removed, and a new
    // interface may have got its index.
    const auto joined = join_group(fd, group, interface);
    any_joined = any_joined || joined;
    const Membership membership{group, interface};
    const bool is_new = std::ranges::find(slot.memberships, membership) == slot.memberships.end();
    if (joined && is_new) slot.memberships.push_back(membership);
    if (joined && first_ipv4_members().size() <= kGroupsMax) continue;
    last_error =
        joined ? fail(Errc::kNoResources,
                      "too many pairs of an IPv4 multicast group and an interface on this host")
               : joined;
    if (last_error.error().code != Errc::kNoResources) continue;
    for (; slot.memberships.size() > old_count; slot.memberships.pop_back()) {
      (void)leave_group(fd, group, slot.memberships.back().interface);
    }
    return last_error;
  }
  return any_joined ? Result<void>{} : last_error;
}

// ---- the filter ---------------------------------------------------------------------------------

Result<void> RocePort::attach_filters() {
  // A single socket is not a group yet and needs no filter.
  if (slots_.size() < 2) return {};
  if (slots_[0].ipv4) VB_TRY_VOID(attach_filter(slots_[0].ipv4.get(), first_ipv4_members()));
  if (slots_[0].ipv6) VB_TRY_VOID(attach_filter(slots_[0].ipv6.get(), {}));
  return {};
}

Result<void> RocePort::attach_filter(int fd, std::span<const GroupSteering> groups) const {
  std::vector<Steering> rules;
  for (std::size_t i = 1; i < slots_.size(); ++i) {
    if (slots_[i].range != 0) rules.push_back({slots_[i].range, static_cast<std::uint32_t>(i)});
  }
  return attach_steering(fd, rules, groups);
}

// Returns the first member of each IPv4 group on each interface.  If a group has more members, the
// kernel does not run the filter, so the rule has no effect.
std::vector<GroupSteering> RocePort::first_ipv4_members() const {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> first;
  for (std::size_t i = 1; i < slots_.size(); ++i) {
    for (const Membership& m : slots_[i].memberships) {
      if (!wire::is_ipv4(m.group)) continue;
      first.try_emplace({wire::ipv4_address(m.group), m.interface}, static_cast<std::uint32_t>(i));
    }
  }
  std::vector<GroupSteering> all;
  for (const auto& [key, socket] : first) all.push_back({key.first, key.second, socket});
  return all;
}

Result<void> attach_steering(int fd, std::span<const Steering> rules,
                             std::span<const GroupSteering> groups) {
  // Offset 0 is the first byte of the UDP payload, so bytes 5 and 6 are the upper 16 bits of BTH's
  // destination QPN.  If a packet is too short for this load, the filter returns 0, the index of
  // the agent's socket.
  std::vector<sock_filter> program{
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 5),
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
  };
  if (!groups.empty()) {
    constexpr std::uint32_t kDestinationAt = 16;  // in the IPv4 header
    const sock_filter load_destination = BPF_STMT(
        BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(SKF_NET_OFF) + kDestinationAt);
    const auto distance = static_cast<std::uint32_t>(5 * groups.size() + 2);
    // Only multicast packets (range 0xfff) use the rules for groups.  All others jump over them.
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRangesEnd, 1, 0));
    program.push_back(BPF_STMT(BPF_JMP | BPF_JA, distance));
    program.push_back(load_destination);
    for (const GroupSteering& rule : groups) {
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rule.group, 0, 4));
      program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                 static_cast<std::uint32_t>(SKF_AD_OFF) + SKF_AD_IFINDEX));
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rule.interface, 0, 1));
      program.push_back(BPF_STMT(BPF_RET | BPF_K, rule.socket));
      program.push_back(load_destination);
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  }
  for (const Steering& rule : rules) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rule.range, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, rule.socket));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()),
                          .filter = program.data()};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &filter, sizeof(filter)) != 0) {
    return system_error(errno, "cannot attach the steering filter");
  }
  return {};
}

}  // namespace verbena::os
