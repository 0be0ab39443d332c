#pragma once

#include <cstdint>

#include "base/time.h"

namespace verbena::hca {

// How long an answer takes, and so how long a silence may be before it is taken for a loss.
//
// The time-out of a QP says when a retry is used up, and is far longer than a round trip on a local
// network.  So the round trip is measured, smoothed as TCP does it (RFC 6298), and when nothing has
// moved for longer than it should take, the oldest packets go out again: a probe.
//
// What a probe was good for is learnt from its answer.  One that came too early (the peer was only
// slow: it has answered what was sent first, or sooner than any answer can come) makes the
// connection more patient; a loss makes it less so: on a line that loses much, a few hundred
// microseconds decide about its speed, and on one that loses nothing a peer in user space may be
// off its CPU for milliseconds.
class RoundTrip {
 public:
  void start() { *this = {}; }

  // The packet before `number`, never sent before, asks for an answer.  One is measured at a time.
  void sent(std::uint64_t number, Time now);
  // What was measured may go out again: of which sending would the answer be?
  void forget() { number_ = 0; }
  // Everything before `una` is answered, and that is new.
  void answered(std::uint64_t una, Time now);

  void probe(Time now);
  // What became of the last probe, or of a packet that the peer has missed.
  void was_too_early(Duration took);
  void was_lost();
  // An answer that comes now could be one to what the last probe sent.
  bool may_answer_probe(Time now) const { return now - probed_ >= least_; }

  // Since when: the last progress or the last probe, whichever is later.
  Time due(Time moved) const;

 private:
  void add(Duration sample);
  Duration patience() const;

  std::uint64_t number_ = 0;  // its answer gives the next measurement; 0: none
  Time sent_at_{};
  Time probed_{};
  unsigned probes_ = 0;  // since something moved
  Duration smoothed_{};  // 0: not known
  Duration deviation_{};
  Duration least_{};  // that was ever measured
  Duration floor_ = std::chrono::milliseconds(5);
};

}  // namespace verbena::hca
