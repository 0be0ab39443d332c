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

// Identifies the sender of a packet: a program of a host, or the host's node if there is no
// program.
struct Sender {
  ethernet::HostIndex host = 0;
  std::optional<node::ClientId> program{};
};

// Holds a packet that is late, because a link is slow or a host is paused.
struct LatePacket {
  Sender from{};
  link::Address address{};
  std::vector<std::byte> transport{};
  // The range of the receiver's QP numbers, if this is a copy of a multicast packet.
  std::optional<std::uint16_t> member{};
};

// Holds the packets of an Ethernet fabric that are late.  Each link has a queue (Line) for each
// direction.  Packets that a host sends to itself have queues of their own.
class LatePackets {
 public:
  using Line = faults::DelayLine<LatePacket>;

  struct Way {
    bool arrives = false;  // true: towards the host of the rail; false: from that host
    bool stays = false;    // the host sends the packet to itself
    ethernet::RailId rail{};
    friend constexpr auto operator<=>(const Way&, const Way&) = default;
  };

  // Returns true if packets wait on this way.  A further packet must then wait behind them.
  bool has(const Way& way) const { return lines_.contains(way); }
  bool empty() const { return lines_.empty(); }
  // Returns the number of packets.
  std::size_t size() const;

  // Returns false if the line is full.
  bool hold(const Way& way, LatePacket packet, Time due) {
    return lines_[way].line.push(std::move(packet), due);
  }

  // Calls pass(way, packet) for the packets that are due, in their order.  pass() returns false if
  // the packet must wait for room at its receiver, and may itself call hold().  Packets of paused
  // hosts stay.  Returns true if a packet has left.
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
  // Returns the time at which release() has something to do, unless a full receiver gets room
  // earlier.
  Time next_deadline(const ethernet::LinkFaults& faults) const;

 private:
  struct Waiting {
    Line line{};
    bool needs_room = false;  // the receiver of the first packet is full
  };
  std::map<Way, Waiting> lines_{};
};

}  // namespace verbena::hosts
