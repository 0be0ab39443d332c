#pragma once

#include "hca/qp_core.h"
#include "hca/srq.h"
#include "hca/work_queue.h"
#include "link/framing.h"

namespace verbena::hca {

// Implements the UD transport (vol1 9.8.3): a send is one packet, and completes when its burst is
// sent.  A received packet uses one receive or is dropped.
//
// A receive begins with 40 bytes for the network header (vol1 11.4.2.1, annex A17.4.4): an IPv6
// header, or 20 zero bytes and an IPv4 header; on InfiniBand the GRH, or zeros without one.  The
// link does not pass the header on, so this class rebuilds it from the address.
class UdTransport {
 public:
  static constexpr std::uint32_t kGrhBytes = 40;
  static constexpr std::uint32_t kPayloadBytesMax = 4096;

  UdTransport(QpCore& core, SendQueue& sends, ReceiveSource& receives);

  // Starts with the QP's sq_psn.
  void start();
  // Works as UcTransport::transmit() does.
  Verdict transmit(link::Burst& burst, unsigned quota, bool begin_new, bool* more);
  // Works as UcTransport::complete_sent() does.
  Verdict complete_sent();
  bool drained() const { return sends_in_burst_ == 0; }
  // kError: a receive failed, so the QP goes to its error state.
  Verdict receive(const wire::TransportPacket& packet, const link::Arrival& arrival);

  Psn next_psn() const { return next_psn_; }

 private:
  Verdict complete_send(const SendWqe& wqe, WcStatus status);
  Verdict fail_send(const SendWqe& wqe, WcStatus status);

  QpCore& core_;
  SendQueue& sends_;
  ReceiveSource& receives_;
  Psn next_psn_{};
  std::uint32_t sends_in_burst_ = 0;  // the number of oldest sends in the burst
};

}  // namespace verbena::hca
