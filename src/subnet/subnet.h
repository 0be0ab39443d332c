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

namespace verbena::subnet {

// Limits the hops of a packet, so that forwarding tables with a loop lose it, as a switch does when
// a packet's lifetime ends (vol1 18.2.5.4).
inline constexpr unsigned kHopsMax = 64;
// Limits the packets and events that nobody has taken.  Further packets are lost and counted.
inline constexpr std::size_t kDeliveriesMax = 65536;
// Limits the packets that are on their way at once, so that multicast tables with loops, in which
// each switch makes copies, end as well.
inline constexpr std::size_t kInFlightMax = 65536;

// Holds a packet from LRH to ICRC.  There is no VCRC: a simulated link damages nothing.
using Packet = std::vector<std::byte>;

// Holds a packet that has arrived at an HCA, and is not for its SMA or PMA.
struct Delivery {
  PortRef port{};
  Qpn destination_qpn{};  // 0 SMI, 1 GSI, 0xffffff multicast
  Packet packet{};
};

// Holds a packet of QP0 or QP1 in the form of a MAD.
struct MadDelivery {
  PortRef port{};
  Qpn destination_qpn{};  // 0 or 1
  // Names the sender, so that the answer goes to the same address.  For a directed route SMP both
  // LIDs may be the permissive one.  remote_qpn is the sender's QP.
  mad::Address from{};
  mad::Mad mad{};
};

using PortState = wire::PortState;
using PhysicalState = wire::PortPhysicalState;

// Holds the values of a port that programs see (ibv_query_port(), umad_get_port(), sysfs).
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
  std::vector<Guid> guids{};  // gid_prefix and guids[i] are GID i
  std::vector<Pkey> pkeys{};

  // Returns the GID at this index of the port's table; zeros for an empty entry.
  // REQUIRES: the index is one of `guids`.
  Gid gid(std::size_t index) const;

  friend bool operator==(const PortStatus&, const PortStatus&) = default;
};

// Reports that the status of a port, of an HCA or a switch, has changed.
struct PortEvent {
  PortRef port{};
  bool client_reregister = false;  // the SM asks clients to register again (vol1 14.4.11)
};

// Simulates an InfiniBand subnet: HCAs, switches and the links between them.
//
// The nodes have an SMA and a PMA, which answer by themselves (vol1 14.2, 16.1).  A subnet manager
// is a program at an HCA that sends SMPs; without one, all ports stay in the state Init, and no
// data moves.  Packets are forwarded by the tables that the manager has written: LFT, MFT, SL to
// VL, LMC, P_Keys of switches.
//
// A packet takes all its hops within send(), so packets of one path keep their order.  It is lost,
// and counted as the specification says, for a port that is down, an unknown LID, a P_Key that the
// table does not have, a packet larger than the MTU, and kHopsMax.  Not modelled are credits and
// arbitration of virtual lanes: a link is never busy.  Only a slow link (set_delay()) takes time.
//
// Time comes in; the owner pulls deliveries and events after each call.  One thread at a time.
class Subnet {
 public:
  // REQUIRES: problem(topology) returns nothing.
  explicit Subnet(Topology topology);
  Subnet(Subnet&&) noexcept;
  Subnet& operator=(Subnet&&) noexcept;
  ~Subnet();

  const Topology& topology() const;

  // Puts a packet from LRH to ICRC into a port of an HCA, as its transport does.  A packet that is
  // malformed, or larger than the link's MTU, is lost and counted.  A packet whose DLID is one of
  // the port's own returns to it.  REQUIRES: `from` is a port of an HCA.
  void send(PortRef from, Packet packet, Time now);

  // Sends a MAD from QP0 if to.remote_qpn is 0, else from QP1.  SLID, P_Key (by index) and Q_Key
  // are set from the port; path.source_lid only gives the path bits.  An SMP with a directed route
  // starts at this port.  An SMP for this port itself reaches its SMA, even if the port is down.
  // Fails with kInvalidArgument: no such P_Key index.
  Result<void> send_mad(PortRef from, const mad::SendMad& request, Time now);

  std::optional<Delivery> next_delivery();
  std::optional<PortEvent> next_event();

  // Returns a delivery of QP0 or QP1 as a MAD; nothing if the packet does not hold exactly one.
  std::optional<MadDelivery> as_mad(const Delivery& delivery) const;

  PortStatus status(PortRef port) const;
  // Returns PortStatus::state, at little cost.
  PortState state(PortRef port) const;

  // Sets whether a subnet manager runs at this port (PortInfo.CapabilityMask IsSM).  If none runs,
  // requests for SMInfo get an error status; otherwise they are delivered.
  void set_is_sm(PortRef port, bool is_sm, Time now);
  // Pulls or plugs the cable with this place in Topology::links.
  void set_link(std::size_t link, bool up, Time now);
  bool link_is_up(std::size_t link) const;
  // Switches a node off or on.  A node that was off has lost its tables and settings.
  void set_power(std::uint32_t node, bool on, Time now);
  // Makes a node hang: it neither takes nor sends packets, and its agents do not answer.  Packets
  // to and from it wait for the end of the pause, up to faults::DelayLine::kPacketsMax each way;
  // others are lost and counted.  Losing its power ends a pause as well.
  void set_paused(std::uint32_t node, bool paused, Time now);
  bool is_paused(std::uint32_t node) const;
  // Makes a link lose packets in both directions.  A loss of 0 ends it.
  void set_loss(std::size_t link, const faults::Loss& loss);
  // Delays each packet on the link by this time; 0 ends it.  Packets keep their order.  A link that
  // goes down loses the packets on it.
  void set_delay(std::size_t link, Duration delay);
  // Trains the link again with this MTU as the largest one (PortInfo.MTUCap) of both ports; without
  // a value, uses the MTU of the topology.
  void set_mtu(std::size_t link, std::optional<Mtu> mtu, Time now);
  // Empties the entry of the P_Key table that has this key, until the manager writes it again.
  // Returns false if there is none.
  bool remove_pkey(PortRef port, Pkey pkey);
  // Writes a key into an empty entry of the table, if no entry has it.  Returns false if no entry
  // is empty.
  bool add_pkey(PortRef port, Pkey pkey);

  // Returns the time at which advance() has something to do: traps are repeated, M_Key leases end,
  // and packets come out of slow links.
  Time next_deadline() const;
  void advance(Time now);

  // Counts packets for which the specification has no counter.
  struct Counters {
    std::uint64_t sent = 0;
    std::uint64_t delivered = 0;
    std::uint64_t malformed = 0;      // sent by an owner, but not a valid packet
    std::uint64_t too_many_hops = 0;  // over kHopsMax or kInFlightMax
    std::uint64_t not_taken = 0;      // over kDeliveriesMax
    std::uint64_t paused_full = 0;    // sent by a paused node, over faults::DelayLine::kPacketsMax
  };
  const Counters& counters() const;
  // Returns the number of packets that wait on slow links, or at paused nodes.
  std::size_t late() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::subnet
