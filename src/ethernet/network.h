#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/strong.h"
#include "ethernet/link_faults.h"
#include "node/gid_table.h"
#include "plan/plan.h"

namespace verbena::ethernet {

// Decides where packets go in a fabric of virtual hosts: which rails reach each other, how long
// their packets may be, and which programs are in a multicast group.  It does not move packets.
//
// A host also has a loopback interface with the addresses 127.0.0.1 and ::1, which reaches only the
// host itself.
//
// Multicast packets go to the members on rails of the same network and VLAN.  Routers do not
// forward them, as on Linux without a multicast routing protocol.
class Network {
 public:
  static constexpr std::uint32_t kLoopbackInterface = 1;
  static constexpr std::uint32_t kLoopbackMtu = 65536;
  // Limits the number of members in a group, and the number of groups with members.
  static constexpr std::size_t kMembersMax = 4096;
  static constexpr std::size_t kGroupsMax = 4096;

  struct Route {
    Gid source{};
    std::uint32_t interface = 0;  // the number of the interface with the source address
    std::uint32_t mtu_bytes = 0;  // the length of the longest packet that both rails accept
    bool loopback = false;
  };
  // Identifies a program by its range of QP numbers, and the rail on which it has joined a group.
  struct Member {
    RailId rail{};
    std::uint16_t range = 0;
    friend constexpr auto operator<=>(const Member&, const Member&) = default;
  };
  // Names the reasons for which a packet is dropped.
  enum class Drop : std::uint8_t {
    kForeignSource,  // the source is not an address of the sending host
    kNoSuchAddress,  // no host has the destination address
    kNoRoute,        // the rails do not reach each other
    kTooLong,        // the packet is too long for one of the two rails
    kLinkDown,       // a user has taken down the link of one rail, or cut a host off
    kLost,           // a lossy link of one of the two rails has lost the packet
    kCount,
  };
  static constexpr std::size_t kDrops = static_cast<std::size_t>(Drop::kCount);

  explicit Network(plan::Fabric fabric);

  const plan::Fabric& fabric() const { return fabric_; }
  // Returns the addresses of a host.  The loopback addresses are the last.  Device n has the
  // interface number n + 2.
  std::vector<node::HostAddress> addresses(HostIndex host) const;

  // Finds the route from a host to an address, which may be a multicast group.  Without a source,
  // uses the first rail from which a packet can reach the destination.  The error is a message for
  // the user that names the rails.
  std::expected<Route, std::string> route(HostIndex host, const Gid& destination,
                                          const std::optional<Gid>& source) const;
  // Returns the rail to which a packet goes, or the reason for which it is dropped.  `ip_bytes` is
  // the length of the IP packet.  A lossy link counts the packet.
  std::expected<RailId, Drop> forward(HostIndex host, const Gid& source, const Gid& destination,
                                      std::size_t ip_bytes);
  // Describes the link that a packet uses, if it leaves its host.
  struct LinkUse {
    RailId rail{};       // the rail of the source address
    bool stays = false;  // true if the packet does not leave its host, and uses no link
  };
  // Returns the link that a packet uses, or nullopt if the source is not an address of the host.
  std::optional<LinkUse> link_use(HostIndex host, const Gid& source, const Gid& destination) const;
  // Describes the reason for a drop in a message for the user that names the rails.
  std::string reason(Drop drop, HostIndex host, const Gid& source, const Gid& destination,
                     std::size_t ip_bytes) const;

  // Makes the program that has the range a member of the group on exactly these interfaces of its
  // host.  Ignores interfaces that the host does not have.  Returns false if kMembersMax or
  // kGroupsMax does not permit all of these memberships.
  bool set_members(HostIndex host, std::uint16_t range, const Gid& group,
                   std::span<const std::uint32_t> interfaces);
  // Returns the members that receive a packet from this source address.  The result is empty if the
  // source is not an address of the host, or if the packet is too long for the rail of the
  // source.  Lossy links count the packet.
  std::vector<Member> receivers(HostIndex host, const Gid& source, const Gid& group,
                                std::size_t ip_bytes);
  // Returns the total number of members in all groups.
  std::size_t members() const;

  // Gives access to the faults.  A change takes effect with the next packet.
  LinkFaults& faults() { return faults_; }
  const LinkFaults& faults() const { return faults_; }
  // mtu_bytes() and pkeys() return the current values of a rail.  The fabric's file or a fault has
  // set them.
  std::uint32_t mtu_bytes(RailId rail) const;
  const std::vector<Pkey>& pkeys(RailId rail) const;
  // Returns the reason why the port of a rail is down, or nullopt if the port is up.
  std::optional<std::string> down_reason(RailId rail) const;

  static std::uint32_t interface_of(std::uint8_t device) { return device + 2U; }

 private:
  const plan::Rail& rail(RailId id) const { return fabric_.hosts[id.host].rails[id.device]; }
  std::string rail_text(RailId id) const;
  bool can_reach(RailId a, RailId b) const;
  // Returns true if the two rails are in the same network and VLAN.
  bool are_on_same_vlan(RailId a, RailId b) const;
  // Returns the rail of the host that has the address.  The first rail has the loopback addresses.
  std::optional<RailId> rail_of(HostIndex host, const Gid& address) const;
  static bool is_loopback(const Gid& address);
  std::string unreachable_text(RailId from, RailId to) const;
  std::string down_text(RailId id) const;

  plan::Fabric fabric_;
  std::map<Gid, RailId> rail_of_address_{};
  std::map<Gid, std::set<Member>> groups_{};
  LinkFaults faults_{};
};

}  // namespace verbena::ethernet
