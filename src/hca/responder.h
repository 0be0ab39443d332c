#pragma once

#include <cstdint>
#include <vector>

#include "hca/atomics.h"
#include "hca/qp_core.h"
#include "hca/srq.h"

namespace verbena::hca {

// The receiving half of a reliable connection: executes the peer's requests in order, exactly once,
// and answers them (vol1 9.7.2 to 9.7.5, 9.9.3).
//
//   PSN of a request, against the expected one:
//     before   duplicate: SEND and WRITE are acknowledged again, READ is executed again, an atomic
//              has the answer that it had
//     equal    executed; or RNR NAK if it needs a receive and there is none
//     behind   something was lost: one sequence NAK per gap, the request is dropped
//
// Answers wait in here until transmit():
//   * READs and atomics as jobs {next PSN, address, length}, ascending; a packet is made when there
//     is room for it, so a READ costs a job however long it is.  At most max_dest_rd_atomic jobs
//     (vol1 9.7.4); a new one takes the place of the oldest that is only repeated.
//   * one acknowledgement: the newest replaces any older, because it says more.  It follows all
//     jobs, since an acknowledgement that overtook a READ response would make that look lost.
//
// A request that is wrong is answered with a NAK behind the READs before it, and the QP goes to its
// error state: kNak is then the last thing that leaves it.  One kind of error has no NAK, see
// close_without_nak(); then the answers before it are the last.
//
// Invariants:
//  * expected_ moves only over requests that were executed.
//  * A receive request leaves the queue when its message is complete, or failed; a shared queue
//    (vol1 10.2.9.2) when its message begins.
//  * Nothing is remembered about a peer but the jobs and the answers of as many atomics: memory is
//    bounded by max_dest_rd_atomic.
class Responder {
 public:
  Responder(QpCore& core, ReceiveSource& receives);

  // So many READs and atomics will be under way at most.
  void reserve(std::size_t reads) {
    jobs_.reserve(reads);
    atomic_answers_.reserve(reads);
  }
  // The QP's rq_psn holds.
  void start();
  // Nothing is answered any more.
  void silence();

  bool expects(Psn psn) const { return psn == expected_; }
  Psn expected_psn() const { return expected_; }

  Verdict on_request(const wire::TransportPacket& packet);
  // Adds up to `quota` packets; *more as for the Requester.
  Verdict transmit(link::Burst& burst, unsigned quota, bool* more);
  // A NAK, or an answer to what came before the error, still waits in the error state.
  // READs and atomics wait to be answered.
  bool has_jobs() const { return !jobs_.empty(); }
  bool closing() const { return closing_ && (!jobs_.empty() || answer_ != Answer::kNone); }

 private:
  enum class Message : std::uint8_t { kNone, kSend, kWrite };
  enum class Answer : std::uint8_t { kNone, kAck, kNak };

  enum class Kind : std::uint8_t { kRead, kAtomic, kAtomicWrite };
  struct Job {
    Psn begin{}, next{}, end{};  // PSNs of the answers; end is behind the last
    std::uint32_t r_key = 0;
    std::uint64_t address = 0;  // of the next byte
    std::uint32_t length = 0;   // still to be sent
    std::uint32_t msn = 0;
    std::uint64_t original = 0;  // an atomic's answer
    Kind kind = Kind::kRead;
    bool started = false;
    bool again = false;  // was answered before, in whole
  };

  Verdict execute(const wire::TransportPacket& packet);
  Verdict on_send(const wire::TransportPacket& packet);
  Verdict on_write(const wire::TransportPacket& packet);
  Verdict on_read(const wire::TransportPacket& packet);
  Verdict on_atomic(const wire::TransportPacket& packet);
  Verdict on_atomic_write(const wire::TransportPacket& packet);
  Verdict executed_atomic(const wire::TransportPacket& packet, std::uint64_t original);
  void on_duplicate(const wire::TransportPacket& packet);
  void answer_again(const Job& job);
  void atomic_again(const wire::TransportPacket& packet);
  enum class Stale : std::uint8_t { kOldest, kNewest };
  bool make_room(Stale which);
  // A request for so many answers, each with a PSN, can be held beside those that wait.
  bool can_hold(std::uint32_t psns);

  bool well_formed(const wire::TransportPacket& packet, Message kind) const;
  bool readable(const wire::Reth& reth) const;
  Job read_job(const wire::TransportPacket& packet) const;
  Job atomic_job(const wire::TransportPacket& packet, std::uint64_t original) const;
  Verdict executed(const wire::TransportPacket& packet, std::uint32_t psns);
  Verdict complete_receive(const WorkCompletion& completion, bool solicited);
  // Completes the receive at the head with an error.
  void fail_receive(WcStatus status);
  std::uint8_t rnr_timer();
  void not_ready();
  // The peer's request is wrong: a NAK, an event, and the QP's end (vol1 9.9.3).
  Verdict refuse(wire::NakCode code);
  // The same where a completion or the CQ's event tells the owner.
  Verdict close(wire::NakCode code);
  // Ends the QP and leaves the peer's request unanswered, as class J of vol1 9.9.6.3 has it: a SEND
  // that invalidates a bad key.  What was executed before is answered all the same.
  Verdict close_without_nak();

  // False: its memory is not there any more.
  bool send_read_response(Job& job, link::Burst& burst);
  void send_atomic_answer(Job& job, link::Burst& burst);
  void send_answer(link::Burst& burst);

  QpCore& core_;
  ReceiveSource& receives_;

  Psn expected_{};
  std::uint32_t msn_ = 0;  // messages executed, 24 bits (vol1 9.7.7.1.3)
  Message message_ = Message::kNone;
  std::uint64_t received_ = 0;       // bytes of the SEND in work
  std::uint64_t write_address_ = 0;  // of the next byte of the WRITE in work
  std::uint32_t write_remaining_ = 0;
  std::uint32_t write_length_ = 0;
  std::uint32_t write_key_ = 0;

  std::vector<Job> jobs_;
  AtomicAnswers atomic_answers_;
  Answer answer_ = Answer::kNone;
  wire::Aeth nak_{};
  Psn nak_psn_{};
  bool gap_reported_ = false;         // this gap, or this lack of a receive, has had its NAK
  std::uint8_t rnr_naks_in_row_ = 0;  // for what is expected
  bool closing_ = false;
};

}  // namespace verbena::hca
