#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"

namespace verbena::hca {

// Estimates the round trip, and from it the time without progress that indicates a loss.
//
// A QP's timeout determines when a retry is used up.  It is far longer than a round trip on a local
// network.  So this class measures round trips, and computes a probe timeout from them as TCP does
// (RFC 6298).  When there is no progress for this time, the requester sends the oldest packets
// again: a probe.
//
// The answer to a probe adjusts the lower bound of this probe timeout.  The probe was too early if
// the peer was only slow: it answered the first transmission, or it answered sooner than any answer
// to the probe could come.  A probe that was too early raises the bound; a loss lowers it.  The
// bound must adapt.  On a line with many losses a few hundred microseconds determine the
// throughput.  On a line without losses a peer in user space may be off its CPU for milliseconds.
class RoundTrip {
 public:
  void start() { *this = {}; }

  // Holds a measured round trip.
  struct Sample {
    Duration took{};
    Duration least{};           // the shortest round trip so far
    std::uint64_t packets = 0;  // the packets that were answered during this round trip
  };

  // Tells that packet number - 1 was sent for the first time and requests an answer.  `una` is the
  // oldest unanswered packet.  Only one packet is measured at a time.
  void sent(std::uint64_t number, std::uint64_t una, Time now);
  // Stops the measurement, because the packet may be sent again and its answer would be ambiguous.
  void forget() { number_ = 0; }
  // Records progress: all packets before `una` are answered.  Returns a sample if that ends a
  // measurement.
  std::optional<Sample> answered(std::uint64_t una, Time now);

  // Notes that a probe is sent.
  void probe(Time now);
  // The next two functions record the result of the last probe, or a loss that the peer reported.
  void was_too_early(Duration took);
  void was_lost();
  // Returns true if an answer that arrives now could be an answer to the last probe.
  bool may_answer_probe(Time now) const { return now - probed_ >= least_; }

  // Returns the time of the next probe, counted from the last progress or the last probe.
  Time due(Time moved) const;

 private:
  void add(Duration sample);
  Duration timeout() const;

  std::uint64_t number_ = 0;  // packet number_ - 1 is measured; 0: no packet is measured
  std::uint64_t una_at_sent_ = 0;
  Time sent_at_{};
  Time probed_{};
  unsigned probes_ = 0;  // the number of probes since the last progress
  Duration smoothed_{};  // 0: unknown
  Duration deviation_{};
  Duration least_{};                               // the shortest measured round trip
  Duration floor_ = std::chrono::milliseconds(5);  // the lower bound of the probe timeout
};

}  // namespace verbena::hca
