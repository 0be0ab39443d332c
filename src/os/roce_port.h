#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/strong.h"
#include "os/fd.h"
#include "wire/ip.h"

// UDP port 4791 and how its packets find a process (agent side).
//
//   packet --> group of SO_REUSEPORT sockets, one for IPv4 and one for IPv6
//              filter: upper 12 bits of the destination QPN --> index of a socket
//                0: the agent's own     (QP1, strays, what no lease covers)
//                1..512: leased to a process, which gets copies of the two descriptors
//   multicast --> a copy to each socket that is a member, and to no other
//
// Invariants: socket i of both groups belongs to slot i.  No socket but the last is closed while
// the port is open, since closing one moves the last into its place.  The first socket of a group
// is bound before SO_REUSEPORT is set on it, so that nobody else holds the port, and nobody can
// join but this user.
//
// Receive only; data leaves through UdpSender.  One thread.
namespace verbena::os {

// Packets whose destination QPN is in `range` go to the group's socket number `socket`.
struct Steering {
  std::uint16_t range = 0;
  std::uint32_t socket = 0;
};
// Packets for an IPv4 multicast group that come by `interface` go to `socket`, if no other is a
// member.  (For several, the kernel makes copies and asks no filter; and for IPv6 never.)
struct GroupSteering {
  std::uint32_t group = 0;
  std::uint32_t interface = 0;
  std::uint32_t socket = 0;
};
// Gives a group of SO_REUSEPORT sockets a filter of such rules, by way of one of them; what no rule
// names goes to socket 0.  kSystem.
Result<void> attach_steering(int fd, std::span<const Steering> rules,
                             std::span<const GroupSteering> groups = {});

class RocePort {
 public:
  static constexpr std::size_t kLeasesMax = 512;  // the size of a filter that any kernel takes
  static constexpr std::size_t kAvoidMax = 2048;  // of 4094
  static constexpr std::size_t kGroupsMax = 512;  // multicast groups of IPv4, of all leases

  struct Options {
    std::optional<Gid> address{};             // of one family only; nothing: all addresses of both
    std::uint32_t interface = 0;              // for a link-local address
    std::uint16_t port = wire::kRoceUdpPort;  // another one in tests
  };
  struct Lease {
    std::uint16_t range = 0;  // upper 12 bits of the QPNs, never 0 or 0xfff
    Fd ipv4;                  // copies, to be passed on; empty if the host lacks the family
    Fd ipv6;
  };

  // kAddressInUse: `problem` then names who holds the port.  kAddressNotFound: no such address
  // here.
  static Result<std::unique_ptr<RocePort>> open(const Options& options, std::string& problem);
  RocePort(const RocePort&) = delete;
  RocePort& operator=(const RocePort&) = delete;

  // The agent's own sockets; -1 if the host lacks the family.
  int ipv4() const { return slots_[0].ipv4.get(); }
  int ipv6() const { return slots_[0].ipv6.get(); }

  // A random free range that is none of `avoid`, steered from now on to sockets of its own.
  // kNoResources: kLeasesMax ranges are out.  kSystem: no more descriptors, or the kernel refused
  // the filter; nothing has changed then.  REQUIRES: at most kAvoidMax in `avoid`.
  Result<Lease> lease(Random& random, std::span<const std::uint16_t> avoid = {});

  // The range's packets go to the agent's socket from now on, and its sockets to the next lease. To
  // be called when the range has rested for timewait and its owner is gone.  Leaves the groups of
  // set_members().  kBadHandle: not leased.
  Result<void> release(std::uint16_t range);

  // Packets thrown away so far, which were for owners that are gone: by release(), and by lease(),
  // since more may come until the filter has changed.
  std::uint64_t drained() const { return drained_; }

  // Makes a leased socket a member of a multicast group on these interfaces, and on no others.
  // Interfaces that know no multicast are left out, if there is another; else the error is that of
  // the last.  kNoResources: the kernel's limit, or kGroupsMax; then the socket is a member nowhere
  // new.
  // kBadHandle: not leased.  kNotSupported: the port is open for one address alone.
  Result<void> set_members(std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> interfaces);

  std::size_t leases() const { return leased_; }

 private:
  struct Membership {
    Gid group;
    std::uint32_t interface;
    friend bool operator==(const Membership&, const Membership&) = default;
  };
  struct Slot {
    Fd ipv4;
    Fd ipv6;
    std::uint16_t range = 0;  // 0: the agent's own, or free
    std::vector<Membership> memberships{};
  };

  explicit RocePort(const Options& options) : options_(options) { slot_of_range_.fill(0); }

  Result<void> open_first(std::string& problem);
  Result<std::uint16_t> free_slot();
  Result<void> attach();
  Result<void> attach_to(int fd, std::span<const GroupSteering> groups) const;
  std::vector<GroupSteering> lone_members() const;
  Slot* slot_of(std::uint16_t range);
  Result<void> join_all(Slot& slot, int fd, const Gid& group,
                        std::span<const std::uint32_t> interfaces);
  void drain(const Slot& slot);

  Options options_;
  std::vector<Slot> slots_{};
  std::vector<std::uint16_t> free_{};                // drained slots
  std::array<std::uint16_t, 4096> slot_of_range_{};  // 0: not leased
  std::size_t leased_ = 0;
  std::uint64_t drained_ = 0;
};

// Who holds a UDP port of this network namespace.
struct PortHolder {
  bool held = false;
  pid_t pid = 0;         // 0: not to be seen from here
  bool stopped = false;  // and does nothing until it is continued or killed
  bool ours = false;     // of this user
  Gid address{};         // 0.0.0.0 and :: are all addresses
  unsigned uid = 0;
  std::string program{};  // of that pid
  // "pid 17 (ibv_rc_pingpong)", "pid 17 (rping), which is stopped", "a process of uid 1000", "the
  // kernel (rdma_rxe?)"; "nobody" if it is free.
  std::string text{};
};
PortHolder udp_port_holder(std::uint16_t port);

}  // namespace verbena::os
