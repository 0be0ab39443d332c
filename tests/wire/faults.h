#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/time.h"

// Faults of a bad network, for each direction.
namespace verbena::wire_bench {

// Describes the faults of a line.  If all are zero, the line is perfect.
struct Faults {
  Ratio loss{};
  Ratio duplicate{};
  Ratio reorder{};     // such frames come later than frames that were sent after them
  Ratio corrupt{};     // one to three bits of the UDP payload
  unsigned burst = 1;  // the smallest number of losses or corruptions in a row
  Duration delay{};
  Duration jitter{};  // added to the delay, uniformly, without reordering
  Duration cut{};     // all frames are lost for this time ...
  Duration uncut{};   // ... and then none for this time; repeats
  bool tcp = false;   // faults also hit TCP, for a comparison
};

// Parses text such as "loss=10 reorder=20 burst=3 delay=100 cut=5000/2000": percent (with up to two
// decimals) and milliseconds.  `problem` names a wrong word.
std::optional<Faults> parse_faults(std::string_view text, std::string& problem);

struct Counts {
  std::uint64_t frames = 0;  // frames that faults may hit
  std::uint64_t others = 0;
  std::uint64_t lost = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t corrupted = 0;
  std::uint64_t cut = 0;
  std::uint64_t overflowed = 0;
};

// Carries the frames of one direction of the line.  It is pure: frames and time come in, and due
// frames are taken out.  Faults hit only RoCEv2 (UDP to port 4791), and TCP if wanted, so that the
// hosts can still resolve each other's addresses.
class Direction {
 public:
  static constexpr std::size_t kHeldMax = 100'000;  // limit of delayed frames
  // A reordered frame is delayed by this time more.
  static constexpr Duration kReorderDelay = std::chrono::milliseconds(1);

  Direction(Random random, Time start) : random_(random), cut_began_(start) {}

  void set(const Faults& faults, Time now);
  void reseed(Random random) { random_ = random; }
  void frame(std::span<const std::byte> frame, Time now);
  // Takes the next frame that is due.
  std::optional<std::vector<std::byte>> take(Time now);
  Time deadline() const { return held_.empty() ? kNever : held_.begin()->first.first; }
  const Counts& counts() const { return counts_; }

 private:
  bool cut(Time now) const;
  bool unlucky(Ratio ratio, unsigned& left);
  void corrupt(std::vector<std::byte>& frame, std::size_t payload);
  void hold(std::vector<std::byte> frame, Time due);

  Random random_;
  Faults faults_{};
  Time cut_began_;
  Time last_due_{};
  unsigned losses_left_ = 0, corruptions_left_ = 0;
  std::uint64_t number_ = 0;  // keeps frames that are due at the same time in order
  std::map<std::pair<Time, std::uint64_t>, std::vector<std::byte>> held_;
  Counts counts_;
};

// Returns the offset of the UDP payload of a RoCEv2 frame; 0 if it is another frame.
std::size_t roce_payload(std::span<const std::byte> frame);
bool is_tcp(std::span<const std::byte> frame);

}  // namespace verbena::wire_bench
