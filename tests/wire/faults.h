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

// Models the faults of a bad network.  Each direction has its own faults.
namespace verbena::wire_bench {

// Describes the faults of a line.  With the default values, the line is perfect.
struct Faults {
  Ratio loss{};
  Ratio duplicate{};
  Ratio reorder{};     // frames that arrive later than frames that were sent after them
  Ratio corrupt{};     // frames with one to three wrong bits in the UDP payload
  unsigned burst = 1;  // the smallest number of losses or corruptions in a row
  Duration delay{};
  Duration jitter{};      // the longest random addition to the delay; it reorders no frames
  Duration cut{};         // a cut loses all frames that faults may hit, for this time; it repeats
  Duration uncut{};       // the time from the end of a cut to the next cut
  bool hits_tcp = false;  // if true, faults also hit TCP, to compare TCP with Verbena
};

// Parses text such as "loss=10 reorder=20 burst=3 delay=100 cut=5000/2000".  Ratios are in percent,
// with up to two decimals, and times are in milliseconds.  If a word is wrong, returns nothing, and
// `problem` names the word.
std::optional<Faults> parse_faults(std::string_view text, std::string& problem);

// Counts the frames of one direction.
struct Counts {
  std::uint64_t frames = 0;  // frames that faults may hit
  std::uint64_t others = 0;  // frames that faults may not hit
  std::uint64_t lost = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t corrupted = 0;
  std::uint64_t cut = 0;         // frames that were sent during a cut, and are lost
  std::uint64_t overflowed = 0;  // frames that were lost because kDelayedMax frames were delayed
};

// Carries the frames of one direction of the line.  It does no I/O and reads no clock: the caller
// passes in frames and the time, and takes out the frames that are due.  Faults hit only RoCEv2
// (UDP to port 4791), and TCP if `hits_tcp` is set.  So the hosts can still resolve each other's
// addresses.
class Direction {
 public:
  static constexpr std::size_t kDelayedMax = 100'000;  // the largest number of delayed frames
  // The additional delay of a reordered frame.
  static constexpr Duration kReorderDelay = std::chrono::milliseconds(1);

  Direction(Random random, Time start) : random_(random), cut_began_(start) {}

  void set_faults(const Faults& faults, Time now);
  void reseed(Random random) { random_ = random; }
  // Takes a frame that a host has sent, and draws its faults.
  void accept(std::span<const std::byte> frame, Time now);
  // Takes out the next frame that is due; returns nothing if none is due yet.
  std::optional<std::vector<std::byte>> next_due_frame(Time now);
  Time deadline() const { return delayed_.empty() ? kNever : delayed_.begin()->first.first; }
  const Counts& counts() const { return counts_; }

 private:
  bool is_cut(Time now) const;
  bool draw_fault(Ratio ratio, unsigned& remaining);
  void corrupt(std::vector<std::byte>& frame, std::size_t payload);
  void queue_frame(std::vector<std::byte> frame, Time due);

  Random random_;
  Faults faults_{};
  Time cut_began_;
  Time last_due_{};
  unsigned remaining_losses_ = 0, remaining_corruptions_ = 0;  // in the current bursts
  std::uint64_t next_number_ = 0;  // numbers keep the order of frames that are due at the same time
  std::map<std::pair<Time, std::uint64_t>, std::vector<std::byte>> delayed_;
  Counts counts_;
};

// Returns the offset of the UDP payload in a RoCEv2 frame, or 0 for any other frame.
std::size_t roce_payload(std::span<const std::byte> frame);
bool is_tcp(std::span<const std::byte> frame);

}  // namespace verbena::wire_bench
