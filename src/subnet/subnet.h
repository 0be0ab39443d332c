#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "base/time.h"
#include "faults/loss.h"
#include "mad/mad.h"
#include "subnet/topology.h"
#include "wire/port_info.h"
#include "wire/smp.h"

namespace verbena::subnet {

// Limits the hops of a packet.  A packet in a forwarding loop is lost after this many hops, as real
// switches drop a packet whose lifetime has ended (vol1 18.2.5.4).  A manager reaches each node by
// a directed route of at most 63 hops, so no two hosts are farther than twice that from each other.
inline constexpr unsigned kHopsMax = 2 * (wire::kSmpHopsMax + 1);
// Limits the packets that next_delivery() has not returned yet: the SMPs, and the other packets.
// Further packets are lost and counted.
inline constexpr std::size_t kDeliveriesMax = 65536;
// Limits the data packets that are in flight at once, and the SMPs, because slow links and paused
// nodes may release many at the same time.
inline constexpr std::size_t kInFlightMax = 65536;

// Holds a packet from LRH to ICRC.  The packet has no VCRC, because no packet arrives damaged.
using Packet = std::vector<std::byte>;

// Holds a packet that has arrived at an HCA and is not for the SMA or PMA of the HCA.
struct Delivery {
  PortRef port{};
  Qpn destination_qpn{};  // may be 0 (SMI), 1 (GSI) or 0xffffff (multicast)
  Packet packet{};
};

// Holds a packet of QP0 or QP1 in the form of a MAD.
struct MadDelivery {
  PortRef port{};
  Qpn destination_qpn{};  // 0 or 1
  // This is the address for an answer to the sender.  Both LIDs of an SMP with a directed route may
  // be the permissive LID.
  mad::Address from{};
  mad::Mad mad{};
};

using PortState = wire::PortState;
using PhysicalState = wire::PortPhysicalState;

// Holds the values of a port that programs can query (ibv_query_port(), umad_get_port(), sysfs).
struct PortStatus {
  PortState state = PortState::kDown;
  PhysicalState physical_state = PhysicalState::kPolling;
  Lid lid{};
  std::uint8_t lmc = 0;
  Lid sm_lid{};
  std::uint8_t sm_sl = 0;
  std::uint32_t capability_mask = 0;
  std::uint64_t gid_prefix = 0;
  Mtu mtu_active = Mtu::k4096;
  Mtu mtu_max = Mtu::k4096;
  LinkWidth width_active = LinkWidth::k4x;
  LinkSpeed speed_active = LinkSpeed::kSdr;
  std::uint8_t subnet_timeout = 0;  // timeout code
  std::uint8_t max_virtual_lanes = 1;
  std::uint16_t pkey_violations = 0;
  std::uint16_t qkey_violations = 0;
  std::vector<Guid> guids{};  // GID i is gid_prefix followed by guids[i]
  std::vector<Pkey> pkeys{};

  // Returns the GID at this index of the port's table; zeros for an empty entry.  REQUIRES: index <
  // guids.size().
  Gid gid(std::size_t index) const;

  friend bool operator==(const PortStatus&, const PortStatus&) = default;
};

// Reports that the status of a port of an HCA or a switch has changed.
struct PortEvent {
  PortRef port{};
  bool client_reregister = false;  // the SM asks clients to register again (vol1 14.4.11)
};

// Simulates an InfiniBand subnet: HCAs, switches and the links between them.
//
// The nodes have an SMA and a PMA, which answer requests (vol1 14.2, 16.1).  A subnet manager
// is a program at an HCA that sends SMPs.  Without a manager, all ports remain in the state Init,
// and no data packet is forwarded.  Packets are forwarded by the tables that the manager has
// written: LFT, MFT, SL to VL, LMC, P_Keys of switches.
//
// A packet makes all its hops within send(), unless a link is slow or a node is paused.  Packets of
// one path keep their order, except that SMPs go before other packets and have queues of their own.
// The network itself loses a packet in these cases:
//  * A port on its path is down, or does not forward data yet.
//  * Its destination LID is unknown.
//  * A port on its path checks P_Keys and does not have the P_Key of the packet.
//  * The packet is larger than the MTU of a link.
//  * The packet has made kHopsMax hops.
//  * The packet is a copy of a multicast packet that has entered the next switch before.
// The user can make links lose packets, too (set_loss()).  Ports count lost packets as the
// specification says.  A link is never busy, because credits and arbitration of virtual lanes are
// not modelled.  Only slow links (set_delay()) and paused nodes (set_paused()) delay packets.
//
// The owner passes the time to each call, and pulls deliveries and events after the call.  Only one
// thread at a time may use a Subnet.
class Subnet {
 public:
  // REQUIRES: find_problem(topology) returns nothing.
  explicit Subnet(Topology topology);
  Subnet(Subnet&&) noexcept;
  Subnet& operator=(Subnet&&) noexcept;
  ~Subnet();

  const Topology& topology() const;

  // Sends a packet (LRH to ICRC) from a port of an HCA, as the transport of the HCA does.  A packet
  // that is malformed, or larger than the link's MTU, is lost and counted.  A packet to a LID of
  // the port itself returns to the port.  REQUIRES: `from` is a port of an HCA.
  void send(PortRef from, Packet packet, Time now);

  // Sends a MAD from QP0 if to.remote_qpn is 0, else from QP1.  The port sets SLID, P_Key (by
  // index) and Q_Key.  Of path.source_lid, the port uses only the path bits.  An SMP with a
  // directed route starts at this port.  An SMP for this port reaches the node's SMA even if the
  // port is down.  Fails with kInvalidArgument if a MAD from QP1 has a P_Key index that does not
  // exist.
  Result<void> send_mad(PortRef from, const mad::SendMad& request, Time now);

  // Returns SMPs first.
  std::optional<Delivery> next_delivery();
  std::optional<PortEvent> next_event();

  // Returns a delivery of QP0 or QP1 as a MAD; nothing if the packet is not one valid MAD.
  std::optional<MadDelivery> as_mad(const Delivery& delivery) const;

  PortStatus status(PortRef port) const;
  // Returns PortStatus::state.  This is cheaper than status().
  PortState state(PortRef port) const;

  // Sets whether a subnet manager runs at this port (PortInfo.CapabilityMask IsSM).  The manager
  // gets the requests for SMInfo.  Without a manager, the SMA answers them with an error status.
  void set_is_sm(PortRef port, bool is_sm, Time now);
  // Pulls or plugs the cable with this index in Topology::links.
  void set_link(std::size_t link, bool up, Time now);
  // Returns true if the link has trained.
  bool link_is_up(std::size_t link) const;
  // Switches a node off or on.  A node that was off has lost its tables and settings, except IsSM.
  // A node that already is in this state keeps its traps and leases.
  void set_power(std::uint32_t node, bool on, Time now);
  // Pauses a node, or ends its pause.  Packets to and from a paused node wait for the end of the
  // pause, and its agents do not answer.  At most faults::DelayLine::kPacketsMax packets wait in
  // each direction; further packets are lost and counted.  set_power() also ends a pause, and drops
  // the packets that waited.
  void set_paused(std::uint32_t node, bool paused, Time now);
  bool is_paused(std::uint32_t node) const;
  // Makes a link lose packets in both directions; a loss of 0 means that no packet is lost.
  void set_loss(std::size_t link, const faults::Loss& loss);
  // Delays each packet on the link by this time; 0 ends the delay.  Packets keep their order.  A
  // link that goes down loses the packets on it.
  void set_delay(std::size_t link, Duration delay);
  // Trains the link again with this MTU as PortInfo.MTUCap of both ports.  Without a value, the
  // link gets the MTU of the topology.
  void set_mtu(std::size_t link, std::optional<Mtu> mtu, Time now);
  // Removes a P_Key from the table of a port.  The manager may write it again.  Returns false if
  // the table does not have the P_Key.
  bool remove_pkey(PortRef port, Pkey pkey);
  // Adds a P_Key to the table of a port, unless the table has it.  Returns false if the table is
  // full.
  bool add_pkey(PortRef port, Pkey pkey);

  // Returns the time at which advance() must be called.  advance() repeats traps, ends M_Key
  // leases, and delivers the packets of slow links.
  Time next_deadline() const;
  void advance(Time now);

  // Counts packets for which the specification has no counter.
  struct Counters {
    std::uint64_t sent = 0;
    std::uint64_t delivered = 0;
    std::uint64_t malformed = 0;           // invalid packets from send(), and MADs for groups
    std::uint64_t too_many_hops = 0;       // lost because of kHopsMax or kInFlightMax
    std::uint64_t looped_copies = 0;       // copies that would enter a switch again
    std::uint64_t dropped_deliveries = 0;  // lost because of kDeliveriesMax
    std::uint64_t paused_queue_full =
        0;  // sent by a paused node, and lost because its queue is full
  };
  const Counters& counters() const;
  // Returns the number of packets that wait on slow links, or at paused nodes.
  std::size_t late() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::subnet
