#pragma once

#include <cstdint>

#include "hca/qp_core.h"
#include "hca/srq.h"
#include "hca/work_queue.h"

namespace verbena::hca {

// Unreliable connections (vol1 9.8.2): SEND and WRITE as on a reliable one, but nothing is answered
// or sent again.  A request is complete when its last packet is in the burst.
//
// Packets are numbered.  Where a number is missing, the message in work is dropped, without a word:
// what it has written stays, its receive serves the next one.  The next FIRST or ONLY begins anew,
// whatever its number.  Dropped in the same way is what a reliable connection would refuse, and a
// message for which there is no receive, or too small a one (vol1 9.9.3, class D).
class Unreliable {
 public:
  Unreliable(QpCore& core, SendQueue& sends, ReceiveSource& receives);

  // The QP's rq_psn, and its sq_psn, hold.
  void start_receiving();
  void start_sending();

  // `begin_new`: may begin requests (not in SQD).  `*more`: stopped because of the quota or a full
  // burst.  kError: a send failed, the queue behind it is to be flushed (SQE).
  Verdict transmit(link::Burst& burst, unsigned quota, bool begin_new, bool* more);
  // The burst is sent, so what is there as a whole is done, and not before: whoever sees that a
  // send is done may end, and with it what has not left.  kError: its CQ overflowed.
  Verdict complete_sent();
  // The queue was flushed.
  void flushed() { index_ = 0; }
  // kError: a receive failed, the QP goes to its error state.
  Verdict receive(const wire::TransportPacket& packet);

  // No message has been sent in part (vol1 10.3.1.5: SQD).
  bool drained() const { return index_ == 0 && sent(); }
  bool sent() const { return in_burst_ == 0; }
  Psn next_psn() const { return next_psn_; }
  Psn expected_psn() const { return expected_; }

 private:
  enum class Message : std::uint8_t { kNone, kSend, kWrite };

  WcStatus begin(SendWqe& wqe);
  Verdict complete_send(const SendWqe& wqe, WcStatus status);
  Verdict end_locally(const SendWqe& wqe, WcStatus status);
  // The message in work is over; counted if there is a reason.
  Verdict drop(Counter reason);
  Verdict on_send(const wire::TransportPacket& packet);
  Verdict on_write(const wire::TransportPacket& packet);
  Verdict complete_receive(WorkCompletion completion, bool solicited);

  QpCore& core_;
  SendQueue& sends_;
  ReceiveSource& receives_;

  Psn next_psn_{};
  std::uint32_t in_burst_ = 0;  // of the oldest requests, all of whose packets are there
  std::uint32_t index_ = 0;     // of the packet that is next, of the request behind those

  Psn expected_{};
  Message message_ = Message::kNone;
  std::uint64_t received_ = 0;  // bytes of the message in work
  std::uint64_t write_address_ = 0;
  std::uint32_t write_length_ = 0;
  std::uint32_t write_key_ = 0;
};

}  // namespace verbena::hca
