#pragma once

#include <cstdint>

#include "hca/round_trip.h"

namespace verbena::hca {

// Limits the packets that a queue pair has in flight.
//
// A stock Linux socket buffer (212,992 bytes) holds about 200 packets of up to 1 KiB or about 50 of
// 4 KiB, and several QPs may share it.  So the window is at most 128 KiB, where a packet counts as
// at least 1 KiB.  It starts with 16 KiB, but at least 2 packets.  It grows by each acknowledged
// packet up to a threshold, then by one packet per window.  A loss that the peer reports halves the
// window; a timeout reduces it to 2 packets.
//
// On a long line, many packets are in transit and occupy no buffer of the peer.  The window allows
// twice their number on top of the 128 KiB.  on_measurement() computes their number: the packets
// that the peer acknowledged during one round trip, less the packets that waited in a queue.  As
// long as no packet was lost, the window doubles with each round trip, until the line carries no
// more.
//
// After a loss on a long line, all packets are sent again, and no acknowledgements pace them.  So
// the window begins again with at most 64 KiB, and grows quickly to half of its former size.  Then
// each window grows by one packet for each half millisecond of the round trip, so that a long round
// trip does not slow the growth.
//
// The class is pure: the window depends only on the calls, and no call reads a clock.
class SendWindow {
 public:
  // `packet_bytes` is the largest payload.
  void start(std::uint32_t packet_bytes);
  // Returns the number of packets that may be in flight now.
  std::uint32_t packets() const { return window_; }
  // Returns the number up to which packets() can grow.
  std::uint32_t limit() const { return limit_; }

  void on_acknowledged(std::uint64_t packets);
  void on_measurement(const RoundTrip::Sample& sample);
  // Reduces the window because the peer has reported a loss.
  void on_loss();
  void on_timeout();
  // Reduces the window for a probe.  When the probe is answered, call probe_was_too_early() or
  // probe_was_needed().
  void on_probe();
  bool probe_is_unanswered() const { return window_before_probe_ != 0; }
  void probe_was_too_early();
  void probe_was_needed() { window_before_probe_ = threshold_before_probe_ = 0; }

 private:
  // Sets the threshold to half of this window.
  void halve_threshold(std::uint32_t window);

  std::uint32_t packet_charge_ = 0;     // a packet counts as this number of bytes
  std::uint32_t short_line_limit_ = 0;  // the limit on a short line
  std::uint32_t limit_ = 0;
  std::uint32_t window_ = 0;
  std::uint32_t threshold_ = 0;
  std::uint32_t step_ = 1;                  // packets to add beyond the threshold after each window
  std::uint32_t acknowledged_packets_ = 0;  // packets acknowledged since the last step
  std::uint32_t window_before_probe_ = 0;   // the window before an unanswered probe, or 0
  std::uint32_t threshold_before_probe_ = 0;  // UINT32_MAX: the threshold was equal to the limit
};

}  // namespace verbena::hca
