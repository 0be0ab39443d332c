#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"

namespace verbena::hca {

// Estimates the round trip time, and computes the time without progress that indicates a loss.
//
// A QP's timeout determines when a retry is used up.  This timeout is far longer than a round trip
// on a local network.  So this class measures round trips, and computes a probe timeout from them
// as TCP does (RFC 6298).  When there is no progress for this time, the requester sends the oldest
// packets again: a probe.
//
// The answer to a probe adjusts the lower bound of this probe timeout.  The probe was too early if
// the peer was only slow.  A slow peer answers the first transmission, or answers sooner than any
// answer to the probe could come.  A probe that was too early raises the bound; a loss lowers it.
// The bound must adapt.  On a line with many losses a few hundred microseconds determine the
// throughput.  On a line without losses a peer in user space may be off its CPU for milliseconds.
class RoundTrip {
 public:
  void start() { *this = {}; }

  // Holds a measured round trip.
  struct Sample {
    Duration duration{};
    Duration shortest{};        // the shortest round trip so far
    std::uint64_t packets = 0;  // the number of packets that were answered during this round trip
  };

  // Begins a measurement, unless another one is in progress.  The measured packet has the number
  // `end` - 1.  It was sent for the first time, and requests an answer.  `una` is the oldest
  // unanswered packet.
  void on_sent(std::uint64_t end, std::uint64_t una, Time now);
  // Stops the measurement, because the packet may be sent again and its answer would be ambiguous.
  void stop_measurement() { end_ = 0; }
  // Records progress: all packets before `una` are answered.  Returns a sample if the measured
  // packet is one of them.
  std::optional<Sample> on_answered(std::uint64_t una, Time now);

  // Notes that a probe was sent.
  void on_probe(Time now);
  // Records that the last probe was too early.  `duration` is the round trip of the probed packet.
  void on_early_probe(Duration duration);
  // Records that the last probe was necessary, or that the peer has reported a loss.
  void on_loss();
  // Returns true if an answer that arrives now could be an answer to the last probe.
  bool may_answer_probe(Time now) const { return now - last_probe_ >= shortest_; }

  // Returns the time of the next probe.  It is counted from the last progress or from the last
  // probe, whichever is later.
  Time next_probe(Time last_progress) const;

 private:
  void add_sample(Duration sample);
  Duration timeout() const;

  std::uint64_t end_ = 0;          // 1 + the number of the measured packet; 0: none is measured
  std::uint64_t una_at_sent_ = 0;  // the oldest unanswered packet at that time
  Time sent_at_{};
  Time last_probe_{};
  unsigned probes_ = 0;             // the number of probes since the last progress
  Duration smoothed_round_trip_{};  // 0: unknown
  Duration deviation_{};
  Duration shortest_{};                            // the shortest measured round trip
  Duration floor_ = std::chrono::milliseconds(5);  // the lower bound of the probe timeout
};

}  // namespace verbena::hca
