#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"
#include "hca/qp_core.h"
#include "hca/round_trip.h"
#include "hca/work_queue.h"

namespace verbena::hca {

// The sending half of a reliable connection: turns the send queue into request packets and the
// peer's answers into completions (vol1 9.7.5 acknowledgements, 9.7.6 retries, 9.7.7 READ, 9.4.5
// atomics).
//
// Packets are numbered from 0, in 64 bits; only the wire sees PSNs.  One cursor moves over the
// packets of the queue, and a packet is made from its work request and its number alone, so to send
// again is to move the cursor back ("go back N"):
//
//       oldest without answer     cursor          furthest ever sent
//     ------------|------------------|--------------------|-------------->
//     completed   una_    in flight  cursor_  to be sent  sent_  never sent
//                  ^                            again
//                  +---- NAK, RNR NAK, time-out, gap in READ responses: cursor_ = una_
//
// A READ reserves one number for each packet of its response (vol1 9.7.3.1) and goes out as one or
// more READ requests ("chunks") with consecutive numbers, so that no more data is under way than
// the window allows.  When responses are missing, the first missing packet is asked for: at once
// when a later one shows the gap (once per gap), else by the timer.  Responses are judged by their
// PSN and length alone: Linux's soft-RoCE answers such a request with MIDDLE and LAST, no FIRST.
// An atomic is a chunk of one packet; sent again, the peer answers it from memory.
//
// Window.  At most window_ packets are in flight.  A stock Linux socket buffer (212,992 bytes)
// holds about 200 packets of any size up to 1 KiB and about 50 of 4 KiB, and several QPs may share
// it: so the window ends at 128 KiB, a packet counting as 1 KiB at least, and begins at 16 KiB (but
// 2 packets at least).  It grows by what is acknowledged up to the threshold, then by one per
// window; a loss seen by the peer halves it, a time-out takes it back to 2.
//
// Silence.  When nothing has moved for longer than a round trip should take (round_trip.h), the
// oldest packets go out again, at no cost in retries, each time after twice as long, up to a
// second. A peer that was only slow answers what was sent first: then the window is what it was (as
// TCP does: RFC 5682).
//
// Invariants:
//  * una_ <= cursor_ <= sent_; una_ lies in the request at the queue's head, or nothing is begun.
//  * Requests [head, begun_) have numbers; current_ is the one that holds cursor_.
//  * chunks_ holds the ends of all READ requests and atomics not fully answered, ascending;
//  repeating
//    one never crosses its old end (responders find the original by its range).
//  * Completions come in the order of posting, each request's once.
class Requester {
 public:
  Requester(QpCore& core, SendQueue& queue);

  // So many READs and atomics will be under way at most.
  void reserve(std::size_t reads) { chunks_.reserve(reads); }
  // The QP's sq_psn holds: nothing was sent yet.
  void start();
  // Adds up to `quota` packets.  `begin_new`: may begin requests (not in SQD).  `*more`: stopped
  // because of the quota or a full burst.
  Verdict transmit(link::Burst& burst, unsigned quota, bool begin_new, Time now, bool* more);
  Verdict on_acknowledge(const wire::TransportPacket& packet, Time now);
  Verdict on_answer(const wire::TransportPacket& packet, Time now);
  Verdict on_timer(Time now);
  Time deadline() const;
  // The QP has another path: all tries are there again, and round trips are not what they were.
  void on_other_path();

  // All that was begun is complete (vol1 10.3.1.5: SQD).
  bool drained() const { return queue_.head() == begun_; }
  Psn next_psn() const { return psn_of(sent_); }
  Psn oldest_psn() const { return psn_of(una_); }
  std::uint32_t window_packets() const { return window_; }

 private:
  enum class Step : std::uint8_t { kGo, kWait, kError };
  enum class Advance : std::uint8_t { kArrived, kAnswerMissing, kError };

  Psn psn_of(std::uint64_t number) const;
  // The number that a PSN from the wire means, if it is one of [una_ - 1, sent_).
  bool number_of(Psn psn, std::uint64_t* number) const;

  Step begin_next(bool begin_new);
  Step begin_local(SendWqe& wqe);
  Step send_data(SendWqe& wqe, link::Burst& burst, Time now);
  Step send_question(SendWqe& wqe, link::Burst& burst, Time now);
  Step memory_gone();
  std::uint64_t chunk_end(const SendWqe& wqe);
  void sent(std::uint64_t packets, bool asked, Time now);
  bool must_ask(bool last) const;

  Advance advance(std::uint64_t target, Time now);
  void progress(std::uint64_t packets, Time now);
  Verdict complete_head();
  Verdict fail(WcStatus status, std::uint32_t vendor_error = 0);

  Verdict ghost();
  Verdict on_nak(const wire::Aeth& aeth, std::uint64_t number, Time now);
  Verdict on_rnr_nak(const wire::Aeth& aeth, std::uint64_t number, Time now);
  Verdict answer_missing(Time now);
  Verdict go_back(Time now);
  void shrink_window();
  void rewind();
  void probe(Time now);
  void judge_probe(Time now);
  Duration timeout() const;
  std::uint32_t window_max() const;

  QpCore& core_;
  SendQueue& queue_;

  Psn first_psn_{};  // PSN of number 0
  std::uint64_t una_ = 0;
  std::uint64_t cursor_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t numbered_ = 0;  // the first number that no request has
  std::uint32_t current_ = 0;   // positions in the queue
  std::uint32_t begun_ = 0;
  std::uint32_t questions_open_ = 0;  // READs and atomics begun and not complete
  std::vector<std::uint64_t> chunks_;

  std::uint64_t asked_ = 0;  // number behind the last packet with the AckReq bit
  std::uint64_t gap_ = 0;    // una_ + 1 for which missing READ data was asked for; 0: none
  std::uint32_t window_ = 0;
  std::uint32_t threshold_ = 0;
  std::uint32_t grown_ = 0;  // packets acknowledged since the window last grew by one
  std::uint32_t retries_ = 0;
  std::uint32_t rnr_retries_ = 0;
  Time moved_{};                     // when una_ moved, or sending (again) began
  Time waits_since_{};               // since una_ stands, however often it was sent
  std::uint32_t window_before_ = 0;  // the probe's; 0: none, or its answer has come
  RoundTrip round_trip_{};
  Time rnr_until_ = kNever;  // kNever: not waiting
};

}  // namespace verbena::hca
