#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "hca/direct_access.h"
#include "hca/qp_core.h"
#include "hca/round_trip.h"
#include "hca/send_window.h"
#include "hca/work_queue.h"

namespace verbena::hca {

// Executes the sending half of a reliable connection: turns the send queue into request packets,
// and the peer's acknowledgements and responses into completions (vol1 9.7.5 acknowledgements,
// 9.7.6 retries, 9.7.7 READ, 9.4.5 atomics).
//
// Packets are numbered from 0 with 64 bits; PSNs exist only on the wire.  One cursor moves over the
// packets of the queue.  A packet depends only on its work request and its number, so the requester
// retransmits by moving the cursor back ("go back N"):
//
//       oldest unacknowledged     cursor          highest ever sent
//     ------------|------------------|--------------------|-------------->
//     completed   una_    in flight  cursor_  to be sent  sent_end_  never sent
//                  ^                            again
//                  +---- NAK, RNR NAK, timeout, gap in READ responses: cursor_ = una_
//
// A READ reserves one number for each packet of its response (vol1 9.7.3.1).  The READ is sent as
// one or more READ requests ("chunks") with consecutive numbers, so that no more data is in flight
// than the window allows.  When responses are missing, the requester sends a new READ request that
// begins with the first missing packet.  If a later response reveals the gap, the requester does so
// at once, but only once per gap.  Otherwise it does so when the timer expires.  The requester
// checks the PSN, the kind and the length of a response, but accepts FIRST, MIDDLE, LAST and ONLY
// in any order, because Linux's soft-RoCE answers a repeated READ with MIDDLE and LAST but no
// FIRST.  An atomic is a chunk of one packet; when it is retransmitted, the peer repeats its stored
// response.
//
// The window (send_window.h) limits the packets in flight.  On a lane (link/lane.h) the window is
// fixed, the lane's ring is a second limit, and there are no probes.  A timeout on a lane uses up a
// retry only if the peer has taken the packets out of the lane.  Then the peer may have dropped
// them, for example because its QP was not ready yet.
//
// A WRITE or READ that is the oldest unfinished request may need no packets at all
// (direct_access.h).  Such a request takes the numbers that its packets would have, and is complete
// at once.
//
// Probes.  When there was no progress for longer than a round trip should take (round_trip.h), the
// requester sends the oldest packets again without using up a retry.  The interval doubles with
// each probe, up to one second.  If the answer shows that the peer was only slow, the requester
// restores the window, as TCP does (RFC 5682).
//
// Invariants:
//  * una_ <= cursor_ <= sent_end_; una_ lies in the request at the queue's head, if one is started.
//  * Requests [head, next_to_begin_) have numbers; current_request_ is the request that contains
//    cursor_.
//  * chunks_ holds the ends of all sent READ requests and atomics that lack a part of their
//    response, in ascending order.  A retransmitted chunk keeps its end, because responders find
//    the original by its range.
//  * Completions come in the order of posting, one for each signaled or failed request.
class Requester {
 public:
  Requester(QpCore& core, SendQueue& queue);

  // Reserves memory for this number of outstanding READs and atomics.
  void reserve(std::size_t request_count) { chunks_.reserve(request_count); }
  // Resets the state for a new connection, which starts with the QP's sq_psn.
  void start();
  // Adds up to `quota` packets.  Starts new requests only if `begin_new` is set (not in SQD).  Sets
  // `*more` if there is more to send, but the quota is used up, or the burst or the lane is full.
  Verdict transmit(link::Burst& burst, unsigned quota, bool begin_new, Time now, bool* more);
  Verdict on_acknowledge(const wire::TransportPacket& packet, Time now);
  Verdict on_response(const wire::TransportPacket& packet, Time now);
  Verdict on_timer(Time now);
  Time deadline() const;
  // Forgets the position of the last packet, because it is not a position in the QP's new lane.
  void on_lane_changed() { lane_position_ = 0; }
  // Resets the retries, the round trip and the window, because the QP uses another path.
  void on_path_changed();

  // Returns true if all requests that were started are complete (vol1 10.3.1.5: SQD).
  bool drained() const { return queue_.head() == next_to_begin_; }
  Psn next_psn() const { return psn_of(sent_end_); }
  Psn oldest_psn() const { return psn_of(una_); }
  std::uint32_t window_packets() const { return window(); }
  // Returns true if the newest posts may wait for more posts (Engine::posts_can_wait()).
  bool posts_can_wait() const;

 private:
  // kCarriedOut: direct access has carried out a request.  kPartCopied: it has copied a part.
  enum class Step : std::uint8_t { kContinue, kWait, kError, kCarriedOut, kPartCopied };
  enum class Advance : std::uint8_t { kReached, kResponseMissing, kError };

  Psn psn_of(std::uint64_t number) const;
  // Converts a PSN from the wire to a packet number.  Returns false if the number is not in
  // [una_ - 1, sent_end_).
  bool number_of(Psn psn, std::uint64_t* number) const;

  Step begin_next(bool begin_new, Time now);
  Step begin_local(SendWqe& wqe);
  bool may_be_direct(const SendWqe& wqe) const;
  std::optional<Step> begin_direct(SendWqe& wqe, Time now);
  Step send_data(SendWqe& wqe, link::Burst& burst, Time now);
  Step send_read_or_atomic(SendWqe& wqe, link::Burst& burst, Time now);
  Step on_inaccessible_memory();
  std::uint64_t chunk_end(const SendWqe& wqe);
  void note_sent(std::uint64_t packets, bool ack_requested, Time now);
  bool must_request_ack(bool last) const;

  Advance advance(std::uint64_t target, Time now);
  void on_progress(std::uint64_t packets, Time now);
  Verdict complete_head();
  Verdict fail(WcStatus status, std::uint32_t vendor_error = 0);

  Verdict drop_unexpected_response();
  Verdict on_nak(const wire::Aeth& aeth, std::uint64_t number, Time now);
  Verdict on_rnr_nak(const wire::Aeth& aeth, std::uint64_t number, Time now);
  Verdict on_response_missing(Time now);
  Verdict retransmit(Time now);
  void rewind();
  void probe(Time now);
  void evaluate_probe(Time now);
  Duration timeout() const;
  // Returns the limit of packets in flight.
  std::uint32_t window() const;

  QpCore& core_;
  SendQueue& queue_;
  DirectAccess direct_;

  Psn first_psn_{};  // PSN of number 0
  std::uint64_t una_ = 0;
  std::uint64_t cursor_ = 0;
  std::uint64_t sent_end_ = 0;
  std::uint64_t next_number_ = 0;        // the number of the first packet of the next request
  std::uint32_t current_request_ = 0;    // a position in the queue
  std::uint32_t next_to_begin_ = 0;      // the position of the first request without numbers
  std::uint32_t reads_outstanding_ = 0;  // READs and atomics that are started and not complete
  std::vector<std::uint64_t> chunks_;    // see the invariants

  std::uint64_t ack_requested_end_ = 0;  // after the last packet with AckReq; at least una_
  // Holds position() of the lane after the last packet, or 0 if the lane has none of the packets.
  std::uint64_t lane_position_ = 0;
  std::uint64_t requested_gap_ = 0;  // una_ + 1 when missing responses were last requested; 0: none
  SendWindow window_{};
  std::uint32_t retries_ = 0;
  std::uint32_t rnr_retries_ = 0;
  Time last_progress_{};  // when una_ last moved, or when sending or resending began
  Time una_since_{};      // when packet una_ became the oldest unacknowledged packet
  RoundTrip round_trip_{};
  Time rnr_until_ = kNever;  // kNever: no RNR NAK delays the requester
};

}  // namespace verbena::hca
