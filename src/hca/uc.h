#pragma once

#include <cstdint>

#include "hca/qp_core.h"
#include "hca/srq.h"
#include "hca/work_queue.h"

namespace verbena::hca {

// Implements the UC transport (vol1 9.8.2): SEND and WRITE as on a reliable connection, but without
// responses or retransmissions.  A request completes when the burst with its last packet is sent.
//
// Packets have PSNs.  When a PSN is missing, the current message is dropped silently.  The bytes
// that were already written remain in memory, and the next message uses the receive.  The next
// FIRST or ONLY packet starts a new message, with any PSN.  A message is dropped in the same way if
// a reliable connection would refuse it, or if it has no receive, or a receive that is too small
// (vol1 9.9.3, class D).
class UcTransport {
 public:
  UcTransport(QpCore& core, SendQueue& sends, ReceiveSource& receives);

  // start_receiving() starts with the QP's rq_psn, and start_sending() with the QP's sq_psn.
  void start_receiving();
  void start_sending();

  // Starts new requests only if `begin_new` is set (not in SQD).  Sets `*more` if there is more to
  // send.  kError: a send failed, and the sends after it must be flushed (SQE).
  Verdict transmit(link::Burst& burst, unsigned quota, bool begin_new, bool* more);
  // Completes the sends whose last packet was in the burst that was just sent.  They must not
  // complete earlier: a program may exit when it sees the completion, and then unsent packets would
  // be lost.  kError: the CQ overflowed, and the completions of some of these sends are lost.
  Verdict complete_sent();
  // Resets the position, because the send queue was flushed.
  void on_flushed() { packet_index_ = 0; }
  // kError: a receive failed, so the QP goes to its error state.
  Verdict receive(const wire::TransportPacket& packet);

  // Returns true if no message is in the burst or partly sent (vol1 10.3.1.5: SQD).
  bool drained() const { return packet_index_ == 0 && has_sent_all(); }
  // Returns true if no message is in the burst.
  bool has_sent_all() const { return sends_in_burst_ == 0; }
  Psn next_psn() const { return next_psn_; }
  Psn expected_psn() const { return expected_; }

 private:
  enum class Message : std::uint8_t { kNone, kSend, kWrite };

  WcStatus begin(SendWqe& wqe);
  Verdict complete_send(const SendWqe& wqe, WcStatus status);
  Verdict complete_locally(const SendWqe& wqe, WcStatus status);
  // Drops the current message and counts the reason.
  Verdict drop(Counter reason);
  Verdict on_send(const wire::TransportPacket& packet);
  Verdict on_write(const wire::TransportPacket& packet);
  Verdict complete_receive(WorkCompletion completion, bool solicited);

  QpCore& core_;
  SendQueue& sends_;
  ReceiveSource& receives_;

  Psn next_psn_{};
  std::uint32_t sends_in_burst_ = 0;  // the number of oldest requests with all packets in the burst
  std::uint32_t packet_index_ = 0;    // the index of the next packet of the next request

  Psn expected_{};
  Message message_ = Message::kNone;
  std::uint64_t received_bytes_ = 0;  // the bytes of the current message
  std::uint64_t write_address_ = 0;
  std::uint32_t write_length_ = 0;
  std::uint32_t write_key_ = 0;
};

}  // namespace verbena::hca
