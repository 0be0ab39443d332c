#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "base/time.h"
#include "faults/delay_line.h"
#include "faults/loss.h"
#include "subnet/subnet.h"

namespace verbena::subnet {

// Holds a packet that is about to arrive at a port.
struct InFlight {
  PortRef at{};
  Packet packet{};
  unsigned hops = 0;
  bool is_loopback = false;  // stays in the HCA, and does not cross a link
};

// Holds the lossy links, slow links and paused nodes of a subnet, and the packets that they delay.
class Impairments {
 public:
  using Line = faults::DelayLine<InFlight>;
  // Holds the packets of a paused node: those that have arrived, and those that it has sent.
  struct Held {
    Line arrived{};
    Line sent{};  // `at` is the port that sends
  };

  // ---- links: `link` is an index in Topology::links, and `out` the port that sends
  // Sets the loss of a link; 0 ends the loss.  The packets of the link are counted from 0 again.
  void set_loss(std::size_t link, const faults::Loss& loss);
  // Counts a packet of the link.  Returns true if it is lost.
  bool loses_next(std::size_t link);
  // Delays the packets that this port sends from now on; 0 ends the delay.
  void set_delay(PortRef out, Duration delay);
  // Returns true if packets that this port sends must pass through delay().  After the end of a
  // delay this stays true until its last packet has left, so that no packet overtakes another.
  bool is_slow(PortRef out) const { return lines_.contains(out); }
  // Delays a packet.  Returns false if too many wait already.  REQUIRES: is_slow(out).
  bool delay(PortRef out, InFlight packet, Time now);
  // Drops the delayed packets of this port, and returns their number.
  std::size_t drop(PortRef out);
  // Appends the packets that are due to `out`, until `out` has `max` packets.  Returns true if it
  // has appended a packet.
  bool take_due(Time now, std::deque<InFlight>& out, std::size_t max);
  // Returns the time at which take_due() has something to do.
  Time next_deadline() const;

  // ---- nodes
  void pause(std::uint32_t node) { paused_.try_emplace(node); }
  bool is_paused(std::uint32_t node) const { return paused_.contains(node); }
  // arrived() and sent() return a line of a paused node, or null if the node is not paused.
  Line* arrived(std::uint32_t node);
  Line* sent(std::uint32_t node);
  // Returns the number of packets on slow links and at paused nodes.
  std::size_t late() const;
  // Ends the pause of a node.  Returns the packets that waited; nothing if the node was not paused.
  std::optional<Held> resume(std::uint32_t node);

 private:
  struct Slow {
    Duration delay{};
    Line line{};
  };
  std::map<std::size_t, faults::LossyLink> lossy_{};
  std::map<PortRef, Slow> lines_{};
  std::map<std::uint32_t, Held> paused_{};
};

}  // namespace verbena::subnet
