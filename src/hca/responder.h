#pragma once

#include <cstdint>
#include <vector>

#include "hca/atomics.h"
#include "hca/qp_core.h"
#include "hca/srq.h"

namespace verbena::hca {

// Executes the receiving half of a reliable connection: carries out the peer's requests in order,
// exactly once, and responds to them (vol1 9.7.2 to 9.7.5, 9.9.3).
//
//   PSN of a request, compared with the expected one:
//     lower    duplicate: acknowledges a SEND or WRITE again, executes a READ again, sends the
//              stored result of an atomic again
//     equal    executes the request; or sends an RNR NAK if it needs a receive and there is none
//     higher   packets were lost: sends one sequence NAK per gap and drops the request
//
// The responder stores pending responses until transmit():
//   * A READ or atomic is a job {next PSN, address, length}; jobs are in ascending order of PSNs.
//     transmit() makes the response packets when it sends them, so a READ of any length takes one
//     job.  There are at most max_dest_rd_atomic jobs (vol1 9.7.4).  If there is no space, a new
//     job replaces a job that only repeats a response (make_job_space()).
//   * At most one acknowledgement is pending.  A newer acknowledgement replaces it, because the
//     newer one covers more requests.  The acknowledgement is sent after all jobs.  If the
//     requester got the acknowledgement first, it would regard the READ responses as lost.
//
// The responder answers an invalid request with a NAK after the responses to the READs before it.
// Then the QP goes to its error state, and the NAK is the last packet that the QP sends.  One kind
// of error has no NAK (close_without_nak()).  Then the responses to earlier requests are the last
// packets.
//
// Invariants:
//  * expected_ advances only past requests that were executed.
//  * A receive request leaves its queue when its message is complete or failed.  A receive request
//    of a shared queue leaves the queue when a SEND begins, or when immediate data of a WRITE
//    arrive (vol1 10.2.9.2).
//  * The responder stores at most max_dest_rd_atomic jobs and results of atomics, so a peer cannot
//    make it use more memory.
class Responder {
 public:
  Responder(QpCore& core, ReceiveSource& receives);

  // Reserves memory for this number of outstanding READs and atomics.
  void reserve(std::size_t request_count) {
    jobs_.reserve(request_count);
    atomic_results_.reserve(request_count);
  }
  // Resets the state for a new connection, which starts with the QP's rq_psn.
  void start();
  // Discards all pending responses.
  void discard_responses();

  bool expects(Psn psn) const { return psn == expected_; }
  Psn expected_psn() const { return expected_; }

  Verdict on_request(const wire::TransportPacket& packet);
  // Advances past a WRITE or READ that the peer has carried out by direct access.  Returns false,
  // and ignores the record, if its PSN is not the expected PSN, a message is incomplete, or the
  // numbers of the record contradict each other.
  bool on_executed(const link::ExecutedRecord& executed);
  // Adds up to `quota` packets.  Sets `*more` as Requester::transmit() does.
  Verdict transmit(link::Burst& burst, unsigned quota, bool* more);
  // Returns true if responses to READs or atomics are pending.
  bool has_jobs() const { return !jobs_.empty(); }
  // Returns true in the error state while a NAK or a response to an earlier request is pending.
  bool is_closing() const {
    return closing_ && (!jobs_.empty() || pending_ack_ != PendingAck::kNone);
  }

 private:
  enum class Message : std::uint8_t { kNone, kSend, kWrite };
  enum class PendingAck : std::uint8_t { kNone, kAck, kNak };

  enum class Kind : std::uint8_t { kRead, kAtomic, kAtomicWrite };
  struct Job {
    Psn begin{}, next{}, end{};  // PSNs of the responses; `end` is the PSN after the last
    std::uint32_t r_key = 0;
    std::uint64_t address = 0;  // the address of the next byte
    std::uint32_t length = 0;   // the bytes still to be sent
    std::uint32_t msn = 0;
    std::uint64_t original = 0;  // the result of an atomic
    Kind kind = Kind::kRead;
    bool started = false;
    bool is_repeat = false;  // the job repeats a response that was sent before
  };

  Verdict execute(const wire::TransportPacket& packet);
  Verdict on_send(const wire::TransportPacket& packet);
  Verdict on_write(const wire::TransportPacket& packet);
  Verdict on_read(const wire::TransportPacket& packet);
  Verdict on_atomic(const wire::TransportPacket& packet);
  Verdict on_atomic_write(const wire::TransportPacket& packet);
  Verdict finish_atomic(const wire::TransportPacket& packet, std::uint64_t original);
  void on_duplicate(const wire::TransportPacket& packet);
  void repeat_response(const Job& job);
  void repeat_atomic(const wire::TransportPacket& packet);
  enum class RepeatedJob : std::uint8_t { kOldest, kNewest };
  bool make_job_space(RepeatedJob which);
  // Returns true if a response of `psns` PSNs fits beside the pending jobs.  May drop a job that
  // only repeats a response.
  bool can_queue_response(std::uint32_t psns);

  bool is_well_formed(const wire::TransportPacket& packet, Message kind) const;
  bool is_readable(const wire::Reth& reth) const;
  Job read_job(const wire::TransportPacket& packet) const;
  Job atomic_job(const wire::TransportPacket& packet, std::uint64_t original) const;
  Verdict finish_request(const wire::TransportPacket& packet, std::uint32_t psns);
  void advance_expected_psn(std::uint32_t psns);
  bool begin_write(const link::ExecutedRecord& executed);
  Verdict complete_receive(const WorkCompletion& completion, bool solicited);
  // Completes the receive at the head with an error.
  void fail_receive(WcStatus status);
  std::uint8_t next_rnr_timer();
  void send_rnr_nak();
  // Refuses an invalid request: sends a NAK, raises an event, and requests the error state of the
  // QP (vol1 9.9.3).
  Verdict refuse(wire::NakCode code);
  // Refuses a request as refuse() does, but raises no event, because a completion or a CQ event
  // reports the error to the program.
  Verdict close(wire::NakCode code);
  // Requests the error state without an answer to the peer, as vol1 9.9.6.3 requires for class J
  // errors: a SEND that invalidates a bad key.  Requests that were executed before still get their
  // responses.
  Verdict close_without_nak();

  // Sends one packet of a READ response.  Returns false if the memory is no longer accessible.
  bool send_read_response(Job& job, link::Burst& burst);
  void send_atomic_response(Job& job, link::Burst& burst);
  void send_acknowledge(link::Burst& burst);

  QpCore& core_;
  ReceiveSource& receives_;

  Psn expected_{};
  std::uint32_t msn_ = 0;  // the number of executed messages, 24 bits (vol1 9.7.7.1.3)
  Message message_ = Message::kNone;
  std::uint64_t received_bytes_ = 0;  // bytes of the current SEND
  std::uint64_t write_address_ = 0;   // the address of the next byte of the current WRITE
  std::uint32_t write_remaining_ = 0;
  std::uint32_t write_length_ = 0;
  std::uint32_t write_key_ = 0;

  std::vector<Job> jobs_;
  AtomicResults atomic_results_;
  PendingAck pending_ack_ = PendingAck::kNone;
  wire::Aeth nak_{};
  Psn nak_psn_{};
  bool gap_reported_ = false;         // a NAK was sent for the expected PSN
  std::uint8_t rnr_naks_in_row_ = 0;  // RNR NAKs for the expected request
  bool closing_ = false;  // an error has ended the connection, and its last packets are pending
};

}  // namespace verbena::hca
