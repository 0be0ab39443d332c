#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/random.h"
#include "base/time.h"

namespace verbena::sim {

// Describes the faults of a network.  The default is a network without faults, so a test sets only
// the faults that it needs.
struct Faults {
  Duration delay_min = std::chrono::microseconds(10);
  Duration delay_max = std::chrono::microseconds(10);
  Ratio loss{};
  Ratio duplicate{};
  Ratio corrupt{};     // the fraction of packets in which one bit is flipped
  unsigned burst = 1;  // the number of consecutive packets that one loss or corruption affects
};

// Holds the fate of one packet: when its copies arrive, and which bit is flipped.
struct PacketOutcome {
  std::vector<Duration> arrivals{};  // the delay of each copy; empty if the packet is lost
  bool corrupt = false;
  std::uint64_t bit = 0;  // the bit to flip, modulo the number of bits in the packet
};

// Draws the fates of packets from a seed.  drop(n) loses packet n independently of the seed, for
// tests of a single loss.  The first packet has number 0.
class FaultyWire {
 public:
  FaultyWire(Random random, Faults faults) : random_(random), faults_(faults) {}

  void drop(std::uint64_t packet) { dropped_.insert(packet); }
  void set_faults(const Faults& faults) {
    faults_ = faults;
    remaining_losses_ = remaining_corruptions_ = 0;
  }
  // Returns the number of packets for which next() has drawn a fate.
  std::uint64_t packets() const { return packet_count_; }

  PacketOutcome next() {
    PacketOutcome fate;
    const bool lost = draw_fault(faults_.loss, remaining_losses_);
    const bool dropped = dropped_.contains(packet_count_++);
    if (lost || dropped) return fate;
    const int copies = random_.chance(faults_.duplicate) ? 2 : 1;
    for (int i = 0; i < copies; ++i) fate.arrivals.push_back(delay());
    fate.corrupt = draw_fault(faults_.corrupt, remaining_corruptions_);
    fate.bit = random_.next();
    return fate;
  }

 private:
  // Returns true if the next packet has this fault.  `remaining_burst` counts the faults that
  // remain in the current burst.
  bool draw_fault(Ratio ratio, unsigned& remaining_burst) {
    if (remaining_burst == 0 && random_.chance(run_start_probability(ratio, faults_.burst))) {
      remaining_burst = faults_.burst;
    }
    if (remaining_burst == 0) return false;
    --remaining_burst;
    return true;
  }
  Duration delay() {
    const auto spread = (faults_.delay_max - faults_.delay_min).count();
    return faults_.delay_min + Duration(static_cast<Duration::rep>(random_.below(
                                   static_cast<std::uint64_t>(spread < 0 ? 0 : spread) + 1)));
  }

  Random random_;
  Faults faults_;
  std::set<std::uint64_t> dropped_;
  std::uint64_t packet_count_ = 0;
  unsigned remaining_losses_ = 0, remaining_corruptions_ = 0;
};

}  // namespace verbena::sim
