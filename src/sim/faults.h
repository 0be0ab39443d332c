#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/random.h"
#include "base/time.h"

namespace verbena::sim {

// Describes the faults of a network.  The default is a network without faults, so a test names only
// the faults that it is about.
struct Faults {
  Duration delay_min = std::chrono::microseconds(10);
  Duration delay_max = std::chrono::microseconds(10);
  Ratio loss{};
  Ratio duplicate{};
  Ratio corrupt{};     // the fraction of packets in which one bit is flipped
  unsigned burst = 1;  // the number of losses or corruptions that follow one another
};

// Holds the fate of one packet: when its copies arrive, and which bit is flipped.
struct Fate {
  std::vector<Duration> arrivals{};  // the delay of each copy; empty if the packet is lost
  bool corrupt = false;
  std::uint64_t bit = 0;  // the bit to flip, modulo the number of bits in the packet
};

// Draws the fates of packets from a seed.  For tests of a single loss, drop(n) loses packet n,
// whatever the seed decides.  The first packet has number 0.
class FaultyWire {
 public:
  FaultyWire(Random random, Faults faults) : random_(random), faults_(faults) {}

  void drop(std::uint64_t packet) { dropped_.insert(packet); }
  void set_faults(const Faults& faults) {
    faults_ = faults;
    losses_left_ = corruptions_left_ = 0;
  }
  std::uint64_t packets() const { return count_; }

  Fate next() {
    Fate fate;
    const bool lost = draw_fault(faults_.loss, losses_left_);
    const bool dropped = dropped_.contains(count_++);
    if (lost || dropped) return fate;
    const int copies = random_.chance(faults_.duplicate) ? 2 : 1;
    for (int i = 0; i < copies; ++i) fate.arrivals.push_back(delay());
    fate.corrupt = draw_fault(faults_.corrupt, corruptions_left_);
    fate.bit = random_.next();
    return fate;
  }

 private:
  // Returns true if the next packet has this fault.  `burst_left` counts the rest of a burst.
  bool draw_fault(Ratio ratio, unsigned& burst_left) {
    if (burst_left == 0 && random_.chance(run_begins(ratio, faults_.burst))) {
      burst_left = faults_.burst;
    }
    if (burst_left == 0) return false;
    --burst_left;
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
  std::uint64_t count_ = 0;
  unsigned losses_left_ = 0, corruptions_left_ = 0;
};

}  // namespace verbena::sim
