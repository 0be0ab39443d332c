#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "base/time.h"
#include "faults/delay_line.h"
#include "faults/loss.h"
#include "subnet/entered_switches.h"
#include "subnet/lane_queues.h"
#include "subnet/subnet.h"

namespace verbena::subnet {

// Holds a packet that is about to arrive at a port.
struct InFlight {
  PortRef at{};
  Packet packet{};
  unsigned hops = 0;
  bool is_loopback = false;  // the packet remains in the HCA, and crosses no link
  // All copies of a multicast packet share this record.  It is null for other packets.
  std::shared_ptr<EnteredSwitches> entered{};
};

// Holds the lossy links, slow links and paused nodes of a subnet, and the packets that they delay.
class Impairments {
 public:
  using DelayLine = faults::DelayLine<InFlight>;
  // Stores the packets that have arrived at a paused node, and the packets that it has sent.
  struct StoredPackets {
    LaneQueues<DelayLine> arrived{};
    LaneQueues<DelayLine> sent{};  // InFlight::at is the port that sends
  };

  // ---- links: `link` is an index in Topology::links, and `out` is the port that sends
  // Sets the loss of a link; 0 ends the loss.  The packets of the link are counted from 0 again.
  void set_loss(std::size_t link, const faults::Loss& loss);
  // Counts a packet of the link.  Returns true if the link loses the packet.
  bool should_drop_next(std::size_t link);
  // Delays the packets that this port sends from now on; 0 ends the delay.
  void set_delay(PortRef out, Duration delay);
  // Returns true if packets that this port sends must pass through delay().  When a delay ends, the
  // result remains true until the last delayed packet has left, so that packets keep their order.
  bool is_slow(PortRef out) const { return slow_ports_.contains(out); }
  // Delays a packet.  Returns false if too many packets already wait.  REQUIRES: is_slow(out).
  bool delay(PortRef out, InFlight packet, Time now);
  // Drops the delayed packets of this port, and returns their number.
  std::size_t drop(PortRef out);
  // Moves packets that are due from slow links to the ends of the queues, until each has `max`
  // packets.  Returns true if at least one packet was moved.
  bool move_due(Time now, LaneQueues<std::deque<InFlight>>& queues, std::size_t max);
  // Returns the time at which the next packet is due.
  Time next_deadline() const;

  // ---- nodes
  void pause(std::uint32_t node) { paused_nodes_.try_emplace(node); }
  bool is_paused(std::uint32_t node) const { return paused_nodes_.contains(node); }
  // arrived_line() and sent_line() return null if the node is not paused.
  DelayLine* arrived_line(std::uint32_t node, bool is_smp);
  DelayLine* sent_line(std::uint32_t node, bool is_smp);
  // Returns the number of packets on slow links and at paused nodes.
  std::size_t late() const;
  // Ends the pause of a node, and returns the packets that waited.  Returns nothing if the node was
  // not paused.
  std::optional<StoredPackets> resume(std::uint32_t node);

 private:
  struct SlowPort {
    Duration delay{};
    LaneQueues<DelayLine> lines{};
  };
  std::map<std::size_t, faults::LossyLink> lossy_links_{};
  std::map<PortRef, SlowPort> slow_ports_{};
  std::map<std::uint32_t, StoredPackets> paused_nodes_{};
};

}  // namespace verbena::subnet
