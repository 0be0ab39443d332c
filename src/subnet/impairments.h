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
  bool is_loopback = false;  // has not crossed the port's link
};

// Holds lossy links, slow links and paused nodes, and the packets that these delay.  It does not
// look at the contents of packets.
class Impairments {
 public:
  using Line = faults::DelayLine<InFlight>;
  // Holds the packets of a paused node: those that have arrived, and those that it has sent.
  struct Held {
    Line arrived{};
    Line sent{};  // `at` is the port that sends
  };

  // ---- links, by their places in the topology; lines, by the port that sends
  // Sets the loss of a link; 0 ends it.  The packets of the link are counted from 0 again.
  void set_loss(std::size_t link, const faults::Loss& loss);
  // Counts a packet of the link.  Returns true if it is lost.
  bool loses_next(std::size_t link);
  // Delays the packets that this port sends from now on; 0 ends it.
  void set_delay(PortRef out, Duration delay);
  // Returns true if packets that this port sends must pass through delay().  That is also true for
  // the first ones after a delay has ended, so that they do not overtake older ones.
  bool is_slow(PortRef out) const { return lines_.contains(out); }
  // Returns false if the line is full.  REQUIRES: is_slow(out).
  bool delay(PortRef out, InFlight packet, Time now);
  // Drops the packets that this port has sent and that have not arrived.  Returns their number.
  std::size_t drop(PortRef out);
  // Moves packets that are due to `out`, until that has `max`.  Returns true if there were some.
  bool take_due(Time now, std::deque<InFlight>& out, std::size_t max);
  // Returns the time at which take_due() has something to do.
  Time next_deadline() const;

  // ---- nodes
  void pause(std::uint32_t node) { paused_.try_emplace(node); }
  bool is_paused(std::uint32_t node) const { return paused_.contains(node); }
  // These return a line of a paused node; null if the node is not paused.
  Line* arrived(std::uint32_t node);
  Line* sent(std::uint32_t node);
  // Returns the number of delayed packets.
  std::size_t late() const;
  // Ends the pause of a node, and returns what it has held.
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
