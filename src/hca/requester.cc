#include "hca/requester.h"

#include <algorithm>

#include "hca/migration.h"
#include "hca/operations.h"

namespace verbena::hca {
namespace {

using wire::AethKind;

// When this number of posts waits, the driver sends them as a batch.
constexpr std::uint32_t kPostsPerBatchMax = 32;
// A request that is longer than this does not wait, because its own system call is a small part of
// its cost.
constexpr std::uint32_t kWaitingPostBytesMax = 1024;
// Without a lane, the requester requests an acknowledgement at least once in this number of
// packets.
constexpr std::uint32_t kPacketsPerAckMax = 32;
// Limits the packets that a QP has outstanding on a lane.  The lane loses nothing, and its ring is
// a limit too.
constexpr std::uint32_t kLaneWindowPackets = 4096;

// The requester treats lower timeout codes as this code, except 0 (no timer).  Their timeouts are
// too short for a peer in user space, which may have no CPU for that time (vol1 9.7.6.1.3 lets an
// adapter round up).  4.096 us * 2^11 = 8.4 ms.
constexpr unsigned kTimeoutCodeMin = 11;

}  // namespace

Requester::Requester(QpCore& core, SendQueue& queue) : core_(core), queue_(queue), direct_(core) {}

void Requester::start() {
  first_psn_ = core_.attributes.sq_psn;
  una_ = cursor_ = sent_end_ = next_number_ = ack_requested_end_ = requested_gap_ = 0;
  current_request_ = next_to_begin_ = queue_.head();
  reads_outstanding_ = retries_ = rnr_retries_ = 0;
  chunks_.clear();
  window_.start(core_.mtu());
  rnr_until_ = kNever;
  round_trip_.start();
  direct_.start();
}

std::uint32_t Requester::window() const {
  return core_.lane != nullptr ? kLaneWindowPackets : window_.packets();
}

Psn Requester::psn_of(std::uint64_t number) const {
  return first_psn_ + static_cast<std::uint32_t>(number & kMask24);
}

bool Requester::number_of(Psn psn, std::uint64_t* number) const {
  const std::int64_t ahead = psn.since(psn_of(una_));
  *number = una_ + static_cast<std::uint64_t>(ahead);
  return ahead >= -1 && (ahead < 0 ? una_ > 0 : *number < sent_end_);
}

bool Requester::posts_can_wait() const {
  const std::uint32_t posted = queue_.tail();
  return una_ != sent_end_ && posted != next_to_begin_ &&
         posted - next_to_begin_ < kPostsPerBatchMax &&
         queue_.at(posted - 1).length <= kWaitingPostBytesMax;
}

// ---- sending ------------------------------------------------------------------------------------

Verdict Requester::transmit(link::Burst& burst, unsigned quota, bool begin_new, Time now,
                            bool* more) {
  if (rnr_until_ != kNever) return Verdict::kContinue;
  while (cursor_ - una_ < window()) {
    if (current_request_ == next_to_begin_) {
      const Step step = begin_next(begin_new, now);
      if (step == Step::kError) return Verdict::kError;
      if (step == Step::kWait) return Verdict::kContinue;
      if (step == Step::kPartCopied || (step == Step::kCarriedOut && quota-- <= 1)) {
        *more = true;
        return Verdict::kContinue;
      }
    }
    if (current_request_ == next_to_begin_) continue;  // the request needed no packet
    if (queue_.at(current_request_).packets == 0) {
      ++current_request_;
      continue;
    }
    if (quota == 0 || !core_.prepare_space(burst, core_.attributes.path.address)) {
      *more = true;
      return Verdict::kContinue;
    }
    SendWqe& wqe = queue_.at(current_request_);
    const Step step = needs_response(wqe.opcode) ? send_read_or_atomic(wqe, burst, now)
                                                 : send_data(wqe, burst, now);
    if (step == Step::kError) return Verdict::kError;
    if (step == Step::kWait) return Verdict::kContinue;
    --quota;
  }
  return Verdict::kContinue;
}

// Checks the next request, and assigns numbers to its packets.  An invalid request fails only when
// it is the oldest request, so that completions keep their order.
Requester::Step Requester::begin_next(bool begin_new, Time now) {
  if (!begin_new || next_to_begin_ == queue_.tail()) return Step::kWait;
  SendWqe& wqe = queue_.at(next_to_begin_);
  if ((wqe.flags & send_flag::kFence) != 0 && reads_outstanding_ > 0) return Step::kWait;

  if (is_local(wqe.opcode)) return begin_local(wqe);
  const WcStatus status = check_request(core_, wqe);
  if (status != WcStatus::kSuccess) {
    if (next_to_begin_ != queue_.head()) return Step::kWait;
    return fail(status) == Verdict::kError ? Step::kError : Step::kContinue;
  }
  if (may_be_direct(wqe)) {
    if (const auto step = begin_direct(wqe, now)) return *step;
  }

  direct_.note_sent_as_packets(wqe);
  wqe.first_number = next_number_;
  wqe.packets = packets_of(core_, wqe);
  next_number_ += wqe.packets;
  reads_outstanding_ += needs_response(wqe.opcode) ? 1 : 0;
  ++next_to_begin_;
  return Step::kContinue;
}

// Requests are sent as packets until the peer has acknowledged the first packet of the connection,
// because this packet establishes the connection at the peer.
bool Requester::may_be_direct(const SendWqe& wqe) const {
  if (una_ == 0 || !direct_.can_carry_out(wqe)) return false;
  return una_ == next_number_ ? direct_.is_better_than_packets(wqe)
                              : direct_.is_worth_waiting_for(wqe);
}

// Carries out a request by direct access, except for the last packet of a WRITE with immediate
// data.  Returns none if the request must be sent as packets.
std::optional<Requester::Step> Requester::begin_direct(SendWqe& wqe, Time now) {
  if (una_ != next_number_ || next_to_begin_ != queue_.head()) return Step::kWait;
  const bool has_last_packet = wqe.opcode == WrOpcode::kWriteImm;
  const std::uint32_t packets = packets_of(core_, wqe);
  const std::uint32_t psns = packets - (has_last_packet ? 1 : 0);
  switch (direct_.carry_out(wqe, psn_of(una_), psns)) {
    case DirectAccess::Outcome::kDone: break;
    case DirectAccess::Outcome::kMore: return Step::kPartCopied;
    case DirectAccess::Outcome::kLaneFull: core_.lane_is_full = true; return Step::kWait;
    case DirectAccess::Outcome::kRefused: return std::nullopt;
  }
  wqe.first_number = next_number_;
  wqe.packets = packets;
  una_ = cursor_ = sent_end_ = ack_requested_end_ = next_number_ + psns;
  next_number_ += packets;
  last_progress_ = una_since_ = now;
  reads_outstanding_ += needs_response(wqe.opcode) ? 1 : 0;
  ++next_to_begin_;
  if (has_last_packet) return Step::kCarriedOut;
  return complete_head() == Verdict::kError ? Step::kError : Step::kCarriedOut;
}

// Executes a local request.  The request completes when all requests before it have completed.
Requester::Step Requester::begin_local(SendWqe& wqe) {
  if (!execute_local(core_, wqe)) {
    if (next_to_begin_ != queue_.head()) return Step::kWait;
    return fail(WcStatus::kWindowBindError) == Verdict::kError ? Step::kError : Step::kContinue;
  }
  wqe.first_number = next_number_;
  wqe.packets = 0;
  if (next_to_begin_++ != queue_.head()) return Step::kContinue;
  return complete_head() == Verdict::kError ? Step::kError : Step::kContinue;
}

// Returns true if the packet at the cursor must have the AckReq bit: at the end of a message, when
// the window is full, and about four times per window, so that the window keeps moving.  On a long
// line, frequent acknowledgements also pace the packets.
bool Requester::must_request_ack(bool last) const {
  const std::uint32_t part = std::max(1u, window() / 4);
  const std::uint32_t packets = core_.lane != nullptr ? part : std::min(part, kPacketsPerAckMax);
  return last || cursor_ + 1 - una_ >= window() ||
         cursor_ + 1 - std::max(ack_requested_end_, una_) >= packets;
}

Requester::Step Requester::send_data(SendWqe& wqe, link::Burst& burst, Time now) {
  const auto index = static_cast<std::uint32_t>(cursor_ - wqe.first_number);
  const bool last = index + 1 == wqe.packets;
  const bool request_ack = must_request_ack(last);
  const bool added = emit_data(core_, burst, wqe,
                               {.transport = wire::Transport::kRc,
                                .index = index,
                                .psn = psn_of(cursor_),
                                .acknowledge_request = request_ack});
  if (!added) return on_inaccessible_memory();
  note_sent(1, request_ack, now);
  if (last) ++current_request_;
  return Step::kContinue;
}

// Fails a request whose memory was deregistered or unmapped after the request was started.
Requester::Step Requester::on_inaccessible_memory() {
  if (current_request_ != queue_.head()) return Step::kWait;
  return fail(WcStatus::kLocalProtectionError) == Verdict::kError ? Step::kError : Step::kContinue;
}

// Returns the end of the READ request or atomic that begins at the cursor.  A retransmission keeps
// its old end; a new chunk gets its share of the window.  The result is cursor_ if the request must
// wait.
std::uint64_t Requester::chunk_end(const SendWqe& wqe) {
  if (cursor_ < sent_end_) {
    const auto old_end = std::ranges::upper_bound(chunks_, cursor_);
    VB_CHECK(old_end != chunks_.end());
    return *old_end;
  }
  const std::size_t reads_max = core_.attributes.max_rd_atomic;
  if (chunks_.size() >= reads_max) return cursor_;
  const std::uint64_t share = std::max(1u, reads_max > 1 ? window() / 2 : window());
  const std::uint64_t end = std::min(wqe.first_number + wqe.packets, cursor_ + share);
  // Waits until the whole share fits into the window, so that the chunks do not become tiny.
  return end - una_ > window() && cursor_ != una_ ? cursor_ : end;
}

// Sends a READ request, an atomic, or an ATOMIC WRITE.  Only an ATOMIC WRITE has a payload.
Requester::Step Requester::send_read_or_atomic(SendWqe& wqe, link::Burst& burst, Time now) {
  const std::uint64_t end = chunk_end(wqe);
  if (end == cursor_) return Step::kWait;
  const std::uint64_t offset = (cursor_ - wqe.first_number) * core_.mtu();
  const std::uint64_t bytes = std::min((end - cursor_) * core_.mtu(), wqe.length - offset);

  wire::TransportPacket packet;
  packet.bth.opcode = wire::opcode_of(wire::Transport::kRc, operation_of(wqe.opcode, true, true));
  packet.bth.migration_request = core_.migration_request();
  packet.bth.destination_qpn = core_.attributes.destination_qpn;
  packet.bth.acknowledge_request = true;
  packet.bth.psn = psn_of(cursor_);
  packet.reth = {wqe.remote.address + offset, wqe.r_key, static_cast<std::uint32_t>(bytes)};
  const bool swaps = wqe.opcode == WrOpcode::kCompareSwap;
  packet.atomic = {.virtual_address = wqe.remote.address,
                   .r_key = wqe.r_key,
                   .swap_or_add = swaps ? wqe.remote.swap : wqe.remote.compare_add,
                   .compare = swaps ? wqe.remote.compare_add : 0};
  const std::size_t payload = wqe.opcode == WrOpcode::kAtomicWrite ? kAtomicBytes : 0;
  const bool added =
      emit(core_, burst, core_.attributes.path.address, packet, payload,
           [&](std::span<std::byte> out) { return out.empty() || copy_data(core_, wqe, 0, out); });
  if (!added) return on_inaccessible_memory();

  if (cursor_ == sent_end_) chunks_.push_back(end);
  note_sent(end - cursor_, true, now);
  if (end == wqe.first_number + wqe.packets) ++current_request_;
  return Step::kContinue;
}

void Requester::note_sent(std::uint64_t packets, bool ack_requested, Time now) {
  if (sent_end_ == una_) last_progress_ = una_since_ = now;
  if (cursor_ < sent_end_) {
    ++core_.shared.counters[Counter::kRetransmissions];
    ++core_.traffic.retransmissions;
  } else if (ack_requested) {
    // This measurement ends with the answer: an acknowledgement, or the first READ response.
    round_trip_.on_sent(cursor_ + 1, una_, now);
  }
  cursor_ += packets;
  sent_end_ = std::max(sent_end_, cursor_);
  if (core_.lane != nullptr) lane_position_ = core_.lane->position();
  if (ack_requested) ack_requested_end_ = cursor_;
}

// ---- responses ----------------------------------------------------------------------------------

void Requester::on_progress(std::uint64_t packets, Time now) {
  una_ += packets;
  evaluate_probe(now);
  last_progress_ = una_since_ = now;
  retries_ = rnr_retries_ = 0;
  if (const auto sample = round_trip_.on_answered(una_, now)) window_.on_measurement(*sample);
  while (!chunks_.empty() && chunks_.front() <= una_) chunks_.erase(chunks_.begin());
  if (cursor_ < una_) {  // the peer has answered packets before their retransmission
    cursor_ = ack_requested_end_ = una_;
    current_request_ = queue_.head();  // if this request is complete, complete_head() moves on
  }
  window_.on_acknowledged(packets);
}

// Completes requests up to `target`, because the peer has received all packets before it.  Stops at
// a request that needs a response of its own.
Requester::Advance Requester::advance(std::uint64_t target, Time now) {
  while (una_ < target) {
    const SendWqe& wqe = queue_.at(queue_.head());
    if (needs_response(wqe.opcode)) return Advance::kResponseMissing;
    const std::uint64_t end = wqe.first_number + wqe.packets;
    on_progress(std::min(end, target) - una_, now);
    if (una_ == end && complete_head() == Verdict::kError) return Advance::kError;
  }
  return Advance::kReached;
}

// Completes the oldest request, and the local requests after it that were already executed.
Verdict Requester::complete_head() {
  do {
    const SendWqe& wqe = queue_.at(queue_.head());
    const bool signaled = core_.init.signal_all || (wqe.flags & send_flag::kSignaled) != 0;
    const WorkCompletion completion{.wr_id = wqe.wr_id,
                                    .opcode = completion_opcode(wqe.opcode),
                                    .byte_len = completion_bytes(wqe),
                                    .qpn = core_.qpn};
    if (needs_response(wqe.opcode)) --reads_outstanding_;
    if (current_request_ == queue_.head()) ++current_request_;
    core_.shared.count_send(completion);
    const WqeSlot slot = queue_.release();
    if (signaled && !core_.shared.complete(core_.send_cq, completion, slot, false)) {
      return Verdict::kError;
    }
  } while (queue_.head() != next_to_begin_ && queue_.at(queue_.head()).packets == 0);
  return Verdict::kContinue;
}

// Completes the oldest request with an error.  The QP then goes to its error state.
Verdict Requester::fail(WcStatus status, std::uint32_t vendor_error) {
  const WorkCompletion completion{.wr_id = queue_.at(queue_.head()).wr_id,
                                  .status = status,
                                  .vendor_error = vendor_error,
                                  .qpn = core_.qpn};
  // If the retries are used up, retries_ or rnr_retries_ also counts the retry that was not sent.
  const bool retries_exhausted =
      status == WcStatus::kRetryExceeded || status == WcStatus::kRnrRetryExceeded;
  if (status == WcStatus::kRetryExceeded) ++core_.shared.counters[Counter::kRetriesExceeded];
  if (status == WcStatus::kRnrRetryExceeded) ++core_.shared.counters[Counter::kRnrRetriesExceeded];
  const bool was_never_sent = sent_end_ == una_;
  core_.shared.add_failure(
      {.qpn = core_.qpn,
       .destination_qpn = core_.attributes.destination_qpn,
       .destination = core_.attributes.path.address.destination,
       .status = status,
       .opcode = queue_.at(queue_.head()).opcode,
       .rnr_retry = core_.attributes.rnr_retry,
       .tries = was_never_sent ? 0 : retries_ + rnr_retries_ + (retries_exhausted ? 0u : 1u),
       .since = una_since_});
  static_cast<void>(core_.shared.complete(core_.send_cq, completion, queue_.release(), true));
  return Verdict::kError;
}

// Counts and drops a response that matches no outstanding request.
Verdict Requester::drop_unexpected_response() {
  ++core_.shared.counters[Counter::kDropUnexpectedResponse];
  return Verdict::kContinue;
}

Verdict Requester::on_acknowledge(const wire::TransportPacket& packet, Time now) {
  std::uint64_t number = 0;
  if (!number_of(packet.bth.psn, &number)) {
    return drop_unexpected_response();
  }
  switch (wire::kind(packet.aeth)) {
    case AethKind::kAck:
      switch (advance(number + 1, now)) {
        case Advance::kReached: return Verdict::kContinue;
        case Advance::kResponseMissing: return on_response_missing(now);
        case Advance::kError: return Verdict::kError;
      }
      return Verdict::kContinue;
    case AethKind::kRnrNak: return on_rnr_nak(packet.aeth, number, now);
    case AethKind::kNak: return on_nak(packet.aeth, number, now);
    case AethKind::kReserved: return drop_unexpected_response();
  }
  return Verdict::kContinue;
}

Verdict Requester::on_rnr_nak(const wire::Aeth& aeth, std::uint64_t number, Time now) {
  if (number < una_) return drop_unexpected_response();
  const Advance advance_result = advance(number, now);
  if (advance_result == Advance::kError) return Verdict::kError;
  if (advance_result == Advance::kResponseMissing) return on_response_missing(now);
  if (rnr_until_ != kNever) return Verdict::kContinue;  // this NAK is a repetition
  ++core_.shared.counters[Counter::kRnrNaksIn];
  ++core_.traffic.rnr_naks_in;
  constexpr std::uint8_t kUnlimitedRetries = 7;
  if (core_.attributes.rnr_retry != kUnlimitedRetries &&
      rnr_retries_++ >= core_.attributes.rnr_retry) {
    return fail(WcStatus::kRnrRetryExceeded, aeth.syndrome);
  }
  rewind();
  rnr_until_ = now + wire::rnr_timer(wire::code(aeth));
  return Verdict::kContinue;
}

Verdict Requester::on_nak(const wire::Aeth& aeth, std::uint64_t number, Time now) {
  if (number < una_) return drop_unexpected_response();
  const Advance advance_result = advance(number, now);
  if (advance_result == Advance::kError) return Verdict::kError;
  if (advance_result == Advance::kResponseMissing) return on_response_missing(now);
  if (wire::nak_code(aeth) != wire::NakCode::kPsnSequenceError) {
    ++core_.shared.counters[Counter::kErrorNaksIn];
  }
  switch (wire::nak_code(aeth)) {
    case wire::NakCode::kPsnSequenceError:
      ++core_.shared.counters[Counter::kSequenceNaksIn];
      // Linux sends such a NAK for every packet after an RNR NAK, so this NAK is ignored during an
      // RNR delay.  It is also ignored if the cursor is already at the oldest unacknowledged
      // packet, because this packet will be sent next.
      if (rnr_until_ != kNever || cursor_ == una_) return Verdict::kContinue;
      window_.on_loss();
      round_trip_.on_loss();
      return retransmit(now);
    case wire::NakCode::kInvalidRequest:
      return fail(WcStatus::kRemoteInvalidRequest, aeth.syndrome);
    case wire::NakCode::kRemoteAccessError:
      return fail(WcStatus::kRemoteAccessError, aeth.syndrome);
    case wire::NakCode::kRemoteOperationalError:
      return fail(WcStatus::kRemoteOperationError, aeth.syndrome);
    case wire::NakCode::kInvalidRdRequest: break;
  }
  return fail(WcStatus::kBadResponse, aeth.syndrome);
}

// Handles a READ response or an ATOMIC acknowledge.  An ATOMIC WRITE has an empty READ response.
Verdict Requester::on_response(const wire::TransportPacket& packet, Time now) {
  std::uint64_t number = 0;
  if (!number_of(packet.bth.psn, &number) || number < una_) {
    return drop_unexpected_response();
  }
  const Advance advance_result = advance(number, now);
  if (advance_result == Advance::kError) return Verdict::kError;
  if (advance_result == Advance::kResponseMissing) return on_response_missing(now);

  const SendWqe& wqe = queue_.at(queue_.head());
  if (!is_response_to(wqe.opcode, packet.bth.opcode)) {
    return drop_unexpected_response();
  }
  const std::uint64_t offset = (number - wqe.first_number) * core_.mtu();
  const bool atomic = is_atomic(wqe.opcode);
  const bool is_empty = wqe.opcode == WrOpcode::kAtomicWrite;
  const std::uint64_t bytes = is_empty ? 0
                              : atomic ? kAtomicBytes
                                       : std::min<std::uint64_t>(core_.mtu(), wqe.length - offset);
  // The result of an atomic is written in this machine's byte order.
  const auto data =
      atomic ? std::as_bytes(std::span(&packet.atomic_ack.original, 1)) : packet.payload;
  if (data.size() != bytes) return fail(WcStatus::kBadResponse);
  if (core_.shared.memory.scatter(core_.pd, SendQueue::sges(wqe), offset, data) !=
      CopyFault::kNone) {
    return fail(WcStatus::kLocalProtectionError);
  }
  const bool last = number + 1 == wqe.first_number + wqe.packets;
  on_progress(1, now);
  return last ? complete_head() : Verdict::kContinue;
}

// ---- loss ---------------------------------------------------------------------------------------

// Handles an answer to a packet after una_, while una_ belongs to a READ or atomic whose response
// is missing: that response is lost or delayed.
Verdict Requester::on_response_missing(Time now) {
  if (requested_gap_ == una_ + 1 || cursor_ == una_) return Verdict::kContinue;
  requested_gap_ = una_ + 1;
  ++core_.shared.counters[Counter::kReadGaps];
  window_.on_loss();
  round_trip_.on_loss();
  return retransmit(now);
}

// Moves the cursor back to the oldest unacknowledged packet.
void Requester::rewind() {
  cursor_ = ack_requested_end_ = una_;
  current_request_ = queue_.head();
  round_trip_.stop_measurement();
}

void Requester::on_path_changed() {
  retries_ = 0;
  round_trip_.start();
  window_.start(core_.mtu());
}

// Retransmits after a loss, and counts a retry.  NAKs and gaps use up retries, although they show
// that the peer is alive.  On a bad line eight of them may arrive within a short time.  So the QP
// fails only after the time that all retries take when the peer does not answer.  After a
// migration, the retries start again.
Verdict Requester::retransmit(Time now) {
  const std::uint8_t retries_max = core_.attributes.retry_count;
  retries_ += retries_ <= retries_max ? 1 : 0;
  if (retries_ > retries_max && now >= una_since_ + (retries_max + 1) * timeout()) {
    if (!migrate(core_)) return fail(WcStatus::kRetryExceeded);
    on_path_changed();
    una_since_ = now;
  }
  rewind();
  last_progress_ = now;
  return Verdict::kContinue;
}

// Decides at the first progress after a probe whether the probe was too early.
void Requester::evaluate_probe(Time now) {
  if (!window_.probe_is_unanswered()) return;
  if (cursor_ < una_ || !round_trip_.may_answer_probe(now)) {
    window_.probe_was_too_early();
    round_trip_.on_early_probe(now - una_since_);
  } else {
    window_.probe_was_needed();
    round_trip_.on_loss();
  }
}

void Requester::probe(Time now) {
  ++core_.shared.counters[Counter::kProbes];
  round_trip_.on_probe(now);
  window_.on_probe();
  rewind();
}

Duration Requester::timeout() const {
  return timeout_of_code(std::max<unsigned>(core_.attributes.timeout, kTimeoutCodeMin));
}

Time Requester::deadline() const {
  if (rnr_until_ != kNever) return rnr_until_;
  if (una_ == cursor_ || core_.attributes.timeout == 0) return kNever;
  if (core_.lane != nullptr) return last_progress_ + timeout();
  return std::min(last_progress_ + timeout(), round_trip_.next_probe(last_progress_));
}

Verdict Requester::on_timer(Time now) {
  if (now < deadline()) return Verdict::kContinue;
  if (rnr_until_ != kNever) {
    rnr_until_ = kNever;
    last_progress_ = now;
    return Verdict::kContinue;
  }
  // If the peer has not taken the packets out of the lane, it is stopped or busy, and no packet is
  // lost.
  if (core_.lane != nullptr && !core_.lane->peer_has_consumed(lane_position_)) {
    last_progress_ = now;
    return Verdict::kContinue;
  }
  if (now < last_progress_ + timeout()) {
    probe(now);
    return Verdict::kContinue;
  }
  ++core_.shared.counters[Counter::kTimeouts];
  ++core_.traffic.timeouts;
  requested_gap_ = 0;
  window_.on_timeout();
  return retransmit(now);
}

}  // namespace verbena::hca
