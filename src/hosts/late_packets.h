#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/time.h"
#include "ethernet/link_faults.h"
#include "faults/delay_line.h"
#include "link/framing.h"
#include "node/node.h"

namespace verbena::hosts {

// Names who has sent a packet: a program of a host, or the host's node.
struct Sender {
  ethernet::HostIndex host = 0;
  std::optional<node::ClientId> program{};
};

// Holds a packet that is late, because a link is slow or a host is paused.
struct LatePacket {
  Sender from{};
  link::Address address{};
  std::vector<std::byte> transport{};
  std::optional<std::uint16_t>
      member{};  // the range of a program, for a copy of a multicast packet
};

// Holds the packets of an Ethernet fabric that are late.  Each link has a line in each direction.
// A line without a link holds what a host sends to itself.
class LatePackets {
 public:
  using Line = faults::DelayLine<LatePacket>;

  struct Way {
    bool arrives = false;  // true: the packet arrives at the host of the rail; false: it leaves it
    bool stays = false;    // the host sends the packet to itself
    ethernet::RailId rail{};
    friend constexpr auto operator<=>(const Way&, const Way&) = default;
  };

  // Returns true if a packet must wait, so that it does not overtake others.
  bool has(const Way& way) const { return lines_.contains(way); }
  bool empty() const { return lines_.empty(); }
  // Returns the number of packets.
  std::size_t size() const;

  // Returns false if the line is full.
  bool hold(const Way& way, LatePacket packet, Time due) {
    return lines_[way].line.push(std::move(packet), due);
  }

  // Passes the packets that are due on, in their order: pass(way, packet) returns false if a packet
  // must wait for room at its receiver.  Those of paused hosts stay.  Returns true if there were
  // some.  `pass` may hold further packets.
  bool release(Time now, const ethernet::LinkFaults& faults, auto pass) {
    bool some = false;
    for (auto it = lines_.begin(); it != lines_.end();) {
      auto& [way, waiting] = *it;
      waiting.needs_room = false;
      while (!faults.is_paused(way.rail.host) && waiting.line.due(now) != nullptr) {
        if (!pass(way, *waiting.line.due(now))) {
          waiting.needs_room = true;
          break;
        }
        (void)waiting.line.pop();
        some = true;
      }
      it = waiting.line.empty() ? lines_.erase(it) : std::next(it);
    }
    return some;
  }
  // Returns the time at which release() has something to do, if no receiver makes room before.
  Time next_deadline(const ethernet::LinkFaults& faults) const;

 private:
  struct Waiting {
    Line line{};
    bool needs_room = false;  // the receiver of the first packet is full
  };
  std::map<Way, Waiting> lines_{};
};

}  // namespace verbena::hosts
