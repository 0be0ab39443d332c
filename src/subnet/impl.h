#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "subnet/device.h"
#include "subnet/entered_switches.h"
#include "subnet/impairments.h"
#include "subnet/lane_queues.h"
#include "subnet/links.h"
#include "subnet/packet.h"
#include "subnet/sma.h"
#include "subnet/subnet.h"
#include "subnet/traps.h"

namespace verbena::subnet {

// Implements Subnet.  forwarding.cc moves packets, management.cc receives packets of QP0 and QP1,
// reports.cc sends traps, and faults.cc implements the faults that a user requests.
//
// All packets in flight are in two queues, except those that a slow link or a paused node delays.
// run() takes packets out of the queues until both are empty, SMPs first.  A packet that is taken
// out makes one hop, and goes back to the end of its queue.  Therefore SMPs of one path keep their
// order, and so do other packets.  The hops need no recursion.
class Subnet::Impl {
 public:
  enum class Violation : std::uint8_t { kPkey, kQkey };

  explicit Impl(Topology topology);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Topology topology;
  Counters counters{};
  std::vector<Device> devices{};
  Links links;
  Impairments impairments{};
  LaneQueues<std::deque<Delivery>> deliveries{};
  std::map<PortRef, bool> events{};  // pending PortEvents: the port, and its client_reregister

  DevicePort& at(PortRef port) { return devices[port.node].ports[port.port]; }
  const DevicePort& at(PortRef port) const { return devices[port.node].ports[port.port]; }

  // Sets the time for all that follows.  Each function of Subnet that gets the time calls this
  // first, because slow links, traps and leases begin their intervals at this time.
  void set_now(Time now) { now_ = now; }
  // Moves all packets in flight to their destinations, sends the packets and traps that are due,
  // and ends the leases that are due.
  void run();
  void send(PortRef from, Packet packet);
  // Continues with the packets that waited for the end of a pause: received and sent packets.
  void send_stored(Impairments::StoredPackets stored);
  // Handles links that have come up or gone down at these ports.
  void report_changes(const std::vector<PortRef>& changed);
  // Adds a PortEvent.
  void report(PortRef port, bool client_reregister = false);
  // Ends the traps and leases of a node whose power has changed, and reports its ports.
  void on_power_change(std::uint32_t node);
  void add_trap(std::uint32_t node, std::uint8_t port, wire::NoticeType type,
                wire::TrapNumber number,
                const std::array<std::byte, wire::kNoticeDetailsBytes>& details);
  // Counts a wrong P_Key or Q_Key in PortInfo, and sends trap 257 or 258.
  void add_key_violation(PortRef port, Violation kind, std::span<const std::byte> packet,
                         const PacketView& view);
  Time next_deadline() const;

 private:
  // Describes a packet that is at a node.  `port` is the port where the packet arrived.  If the
  // node itself sends the packet, `port` is the sending port of an HCA, or port 0 of a switch.
  struct LocalPacket {
    PortRef port{};
    Packet& packet;
    PacketView view{};
    unsigned hops = 0;
    std::shared_ptr<EnteredSwitches> entered{};  // as in InFlight
  };

  void arrive(InFlight& in_flight);
  void arrive_at_hca(const LocalPacket& local);
  void arrive_at_switch(const LocalPacket& local);
  bool passes_inbound_enforcement(const LocalPacket& local);
  bool passes_outbound_enforcement(PortRef out, const LocalPacket& local);
  void add_switch_violation(std::uint8_t port, const LocalPacket& local);
  // Sends a packet to the next hop.  A switch uses its forwarding tables, and gives packets for its
  // own LID to its agents.  An HCA sends the packet from local.port.
  void forward(const LocalPacket& local);
  void forward_unicast(const LocalPacket& local);
  void forward_multicast(const LocalPacket& local);
  void send_from_hca(const LocalPacket& local);
  bool enters_again(PortRef peer, const LocalPacket& local);
  bool set_lane(PortRef out, std::uint8_t ingress, const LocalPacket& local);
  void send_out(PortRef out, Packet packet, const LocalPacket& local);
  void deliver(PortRef port, Qpn destination_qpn, Packet packet);
  bool send_over_link(PortRef out, InFlight packet);
  bool store_arrived(InFlight& packet, bool is_management);
  bool store_sent(PortRef from, Packet& packet, bool is_smp);
  void drop_packets_on(PortRef out);

  void receive_smp(const LocalPacket& local, bool begins_here);
  void step_directed(const LocalPacket& local, wire::Smp& smp, bool begins_here);
  void receive_local_smp(const LocalPacket& local, wire::Smp& smp);
  void answer_smp(const LocalPacket& local, wire::Smp& smp);
  std::uint16_t execute(const LocalPacket& local, wire::Smp& smp, SmaEffects& effects);
  void return_smp(const LocalPacket& local, wire::Smp& smp, std::uint16_t status);
  bool check_m_key(const LocalPacket& local, const wire::Smp& smp);
  void receive_gmp(const LocalPacket& local);
  void answer_gmp(const LocalPacket& local, OpenMad& mad, std::uint16_t status);
  void send_due_traps();
  void end_due_leases();

  Time now_{};
  LaneQueues<std::deque<InFlight>> in_flight_{};
  std::vector<std::uint8_t> multicast_ports_{};
  std::map<std::uint32_t, Traps> traps_{};  // by node; has only nodes with traps
  std::set<PortRef> leases_{};              // ports with a running M_Key lease
};

}  // namespace verbena::subnet
