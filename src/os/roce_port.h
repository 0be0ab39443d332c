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

// Owns UDP port 4791 and steers its packets to processes (agent side).
//
//   packet --> group of SO_REUSEPORT sockets, one for IPv4 and one for IPv6
//              filter: upper 12 bits of the destination QPN --> index of a socket
//                0: the agent's own     (QP1, and QPNs that no lease covers)
//                1..512: leased to a process, which gets copies of the two descriptors
//   multicast --> a copy to each socket that is a member, and to no other
//
// Invariants: Socket i of both groups belongs to slot i.  While the port is open, only the last
// socket of a group may be closed, because the kernel moves the last socket to the index of a
// closed socket.  The first socket of a group is bound before SO_REUSEPORT is set on it.  So
// binding fails if another process has the port, and only sockets of this user can join the group
// later.
//
// RocePort only receives; UdpSender sends.  Only one thread may use it.
namespace verbena::os {

// Sends packets whose destination QPN is in `range` to the group's socket number `socket`.
struct Steering {
  std::uint16_t range = 0;
  std::uint32_t socket = 0;
};
// Sends packets for an IPv4 multicast group that arrive on `interface` to `socket`, if that socket
// is the only member.  (If there are several members, the kernel gives each member a copy without
// running the filter.  It never runs the filter for IPv6 multicast.)
struct GroupSteering {
  std::uint32_t group = 0;
  std::uint32_t interface = 0;
  std::uint32_t socket = 0;
};
// Attaches a filter with these rules to the group of SO_REUSEPORT sockets that `fd` belongs to.
// Packets that match no rule go to socket 0.  kSystem.
Result<void> attach_steering(int fd, std::span<const Steering> rules,
                             std::span<const GroupSteering> groups = {});

class RocePort {
 public:
  static constexpr std::size_t kLeasesMax = 512;  // every kernel accepts a filter of this size
  static constexpr std::size_t kAvoidMax = 2560;  // lease() can avoid so many of the 4094 ranges
  // Limits the pairs of an IPv4 multicast group and an interface in which leases are members.
  static constexpr std::size_t kGroupsMax = 512;

  struct Options {
    std::optional<Gid> address{};             // the only address to listen on; none: all addresses
    std::uint32_t interface = 0;              // for a link-local address
    std::uint16_t port = wire::kRoceUdpPort;  // tests use another port
  };
  struct Lease {
    std::uint16_t range = 0;  // upper 12 bits of the QPNs, never 0 or 0xfff
    Fd ipv4;                  // a copy for the process; empty if the host has no IPv4
    Fd ipv6;                  // a copy for the process; empty if the host has no IPv6
  };

  // Binds the port.  kAddressInUse: another socket has the port, and `problem` names its process.
  // kAddressNotFound: the host does not have the address.
  static Result<std::unique_ptr<RocePort>> open(const Options& options, std::string& problem);
  RocePort(const RocePort&) = delete;
  RocePort& operator=(const RocePort&) = delete;

  // Each returns one of the agent's own sockets, or -1 if the host lacks the IP version or
  // Options::address has the other version.
  int ipv4() const { return slots_[0].ipv4.get(); }
  int ipv6() const { return slots_[0].ipv6.get(); }

  // Leases a random free range that is not in `avoid`.  From now on, the range's packets go to the
  // sockets of the lease.  kNoResources: kLeasesMax ranges are leased.  kSystem: there are no more
  // descriptors, or the kernel refused the filter; then nothing has changed.  REQUIRES: at most
  // kAvoidMax ranges in `avoid`.
  Result<Lease> lease(Random& random, std::span<const std::uint16_t> avoid = {});

  // Ends a lease: from now on the range's packets go to the agent's socket, and a later lease gets
  // the range's sockets.  Leaves the groups of set_members().  kBadHandle: the range is not leased.
  // REQUIRES: the owner does not use the range any more, and packets in flight have had time to
  // arrive.
  Result<void> release(std::uint16_t range);

  // Returns the number of packets for ended leases that were dropped so far.  Both release() and
  // lease() drop such packets, since more may arrive until the filter has changed.
  std::uint64_t drained() const { return drained_; }

  // Makes a leased socket a member of a multicast group on exactly these interfaces.  Skips
  // interfaces without multicast; if all fail, returns the error of the last one.  kNoResources:
  // the kernel's limit or kGroupsMax is reached; then nothing new is joined.  kBadHandle: the range
  // is not leased.  kNotSupported: the port is open for one address only.
  Result<void> set_members(std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> interfaces);

  std::size_t leases() const { return lease_count_; }

 private:
  struct Membership {
    Gid group;
    std::uint32_t interface;
    friend bool operator==(const Membership&, const Membership&) = default;
  };
  struct Slot {
    Fd ipv4;
    Fd ipv6;
    std::uint16_t range = 0;  // 0: the agent's own slot, or a free one
    std::vector<Membership> memberships{};
  };

  explicit RocePort(const Options& options) : options_(options) { slot_of_range_.fill(0); }

  Result<void> open_agent_sockets(std::string& problem);
  Result<std::uint16_t> provide_free_slot();
  Result<void> attach_filters();
  Result<void> attach_filter(int fd, std::span<const GroupSteering> groups) const;
  std::vector<GroupSteering> first_ipv4_members() const;
  Slot* slot_of(std::uint16_t range);
  Result<void> join_all(Slot& slot, int fd, const Gid& group,
                        std::span<const std::uint32_t> interfaces);
  void drain(const Slot& slot);

  Options options_;
  std::vector<Slot> slots_{};
  std::vector<std::uint16_t> free_slots_{};          // indexes of drained slots without a lease
  std::array<std::uint16_t, 4096> slot_of_range_{};  // 0: not leased
  std::size_t lease_count_ = 0;
  std::uint64_t drained_ = 0;
};

// Describes the process that has bound a UDP port in this network namespace.
struct PortHolder {
  bool is_bound = false;    // false: no process has bound the port
  pid_t pid = 0;            // 0: this process cannot see the holder, or the kernel is the holder
  bool is_stopped = false;  // a signal or a debugger has stopped the process
  bool is_of_this_user = false;  // the process belongs to this user
  Gid address{};                 // 0.0.0.0 or :: means all addresses
  unsigned uid = 0;
  std::string program{};  // the name of that process
  // Describes the holder: "pid 17 (ibv_rc_pingpong)", "pid 17 (rping), which is stopped", "a
  // process of uid 1000", "the kernel (maybe rdma_rxe)"; "no process" if the port is free.
  std::string text{};
};
PortHolder udp_port_holder(std::uint16_t port);

}  // namespace verbena::os
