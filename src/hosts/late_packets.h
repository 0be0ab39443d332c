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
  std::optional<std::uint16_t> member_range{};
};

// Holds the packets of an Ethernet fabric that are late.  Each link has a queue for each direction.
// Packets that a host sends to itself have queues of their own.
class LatePackets {
 public:
  using Queue = faults::DelayLine<LatePacket>;

  struct QueueKey {
    bool to_host = false;        // true: to the host of the rail; false: from that host
    bool stays_in_host = false;  // the host sends the packet to itself
    ethernet::RailId rail{};
    friend constexpr auto operator<=>(const QueueKey&, const QueueKey&) = default;
  };

  // Returns true if packets wait in this queue.  A new packet must then wait behind them.
  bool has_packets(const QueueKey& key) const { return queues_.contains(key); }
  bool empty() const { return queues_.empty(); }
  // Returns the number of packets in all queues.
  std::size_t size() const;

  // Adds a packet to a queue.  Returns false if the queue is full.
  bool add(const QueueKey& key, LatePacket packet, Time due) {
    return queues_[key].queue.push(std::move(packet), due);
  }

  // Calls pass(key, packet) for the packets that are due, in the order of their queue, and removes
  // those for which pass() returns true.  pass() returns false if the packet must wait until its
  // receiver has space.  pass() may call add().  Packets of paused hosts remain in their queues.
  // Returns true if a packet was removed.
  bool release(Time now, const ethernet::LinkFaults& faults, auto pass) {
    bool any_removed = false;
    for (auto it = queues_.begin(); it != queues_.end();) {
      auto& [key, state] = *it;
      state.receiver_is_full = false;
      while (!faults.is_paused(key.rail.host) && state.queue.first_due_packet(now) != nullptr) {
        if (!pass(key, *state.queue.first_due_packet(now))) {
          state.receiver_is_full = true;
          break;
        }
        (void)state.queue.pop();
        any_removed = true;
      }
      it = state.queue.empty() ? queues_.erase(it) : std::next(it);
    }
    return any_removed;
  }
  // Returns the time at which the next packet is due.  Ignores queues whose receiver is full or
  // whose host is paused.
  Time next_deadline(const ethernet::LinkFaults& faults) const;

 private:
  struct QueueState {
    Queue queue{};
    bool receiver_is_full = false;  // the receiver of the first packet has no space
  };
  std::map<QueueKey, QueueState> queues_{};
};

}  // namespace verbena::hosts
