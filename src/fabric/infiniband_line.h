#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/strong.h"
#include "link/burst.h"
#include "link/framing.h"
#include "sim/faults.h"
#include "sim/world.h"

namespace verbena::fabric {

// Connects ports by an InfiniBand line without a switch.  A packet arrives at the port that has its
// destination LID.  Packets are complete, from LRH to ICRC.  The sender writes the ICRC, and the
// receiver checks it.
class InfinibandLine {
 public:
  using Receiver = std::function<void(const link::Arrival&)>;

  struct Counters {
    std::uint64_t delivered = 0;
    std::uint64_t unknown_lid = 0;  // packets to a LID that no port has
    std::uint64_t malformed = 0;    // packets that were dropped, mostly because of their ICRC
  };

  // REQUIRES: the world outlives the line.
  InfinibandLine(sim::World& world, Random random, const sim::Faults& faults)
      : world_(world), wire_(random, faults) {}

  // Adds a port with 2^lmc LIDs, beginning at `base_lid`.  REQUIRES: the low `lmc` bits of
  // `base_lid` are 0 (vol1 4.1.3), and no other port has one of the LIDs.
  void attach(Lid base_lid, std::uint8_t lmc, Receiver receiver);
  // Sends and clears the burst.
  void send(link::Burst& burst);

  const Counters& counters() const { return counters_; }

 private:
  struct Port {
    Lid base_lid{};
    std::uint8_t lmc = 0;
    Receiver receiver{};
  };

  const Port* port_with(Lid lid) const;
  void arrive(std::span<const std::byte> packet);

  sim::World& world_;
  sim::FaultyWire wire_;
  std::vector<Port> ports_{};
  Counters counters_{};
};

}  // namespace verbena::fabric
