#include "hca/responder.h"

#include <algorithm>
#include <array>

namespace verbena::hca {
namespace {

using wire::NakCode;
using wire::Opcode;
using wire::Operation;

// PSNs are comparable only over half of their range (vol1 9.7.1).
constexpr std::uint32_t kPsnSpanMax = 0x7fffff;

std::uint32_t response_count(std::uint32_t length, std::uint32_t mtu) {
  return std::max(1u, length / mtu + (length % mtu != 0 ? 1 : 0));
}

// Returns true for atomics and ATOMIC WRITEs.  Their results are stored, because a duplicate of
// them must be answered without a second execution.
bool has_stored_result(Opcode opcode) {
  return wire::is_atomic(opcode) || opcode == Opcode::kRcAtomicWrite;
}

}  // namespace

Responder::Responder(QpCore& core, ReceiveSource& receives) : core_(core), receives_(receives) {}

void Responder::start() {
  expected_ = core_.attributes.rq_psn;
  msn_ = 0;
  message_ = Message::kNone;
  gap_reported_ = false;
  rnr_naks_in_row_ = 0;
  atomic_results_.clear();
  discard_responses();
}

void Responder::discard_responses() {
  jobs_.clear();
  pending_ack_ = PendingAck::kNone;
  closing_ = false;
}

// ---- requests -----------------------------------------------------------------------------------

Verdict Responder::on_request(const wire::TransportPacket& packet) {
  if (closing_) return Verdict::kContinue;
  const std::int32_t ahead = packet.bth.psn.since(expected_);
  if (ahead < 0) {
    ++core_.shared.counters[Counter::kDuplicates];
    on_duplicate(packet);
    return Verdict::kContinue;
  }
  if (ahead == 0) return execute(packet);
  ++core_.shared.counters[Counter::kOutOfOrder];
  if (!gap_reported_) {
    gap_reported_ = true;
    pending_ack_ = PendingAck::kNak;
    nak_ = wire::nak(msn_, NakCode::kPsnSequenceError);
    nak_psn_ = expected_;
    ++core_.shared.counters[Counter::kSequenceNaksOut];
  }
  return Verdict::kContinue;
}

Verdict Responder::execute(const wire::TransportPacket& packet) {
  const Opcode opcode = packet.bth.opcode;
  if (wire::is_send(opcode)) return on_send(packet);
  if (wire::is_write(opcode)) return on_write(packet);
  if (wire::is_atomic(opcode)) return on_atomic(packet);
  if (opcode == Opcode::kRcAtomicWrite) return on_atomic_write(packet);
  return on_read(packet);
}

// Checks the order of first, middle and last, and their payload sizes (vol1 9.7.4.1.1, 9.7.4.1.2).
bool Responder::is_well_formed(const wire::TransportPacket& packet, Message kind) const {
  const Opcode opcode = packet.bth.opcode;
  const std::size_t bytes = packet.payload.size();
  if (message_ != (wire::starts_message(opcode) ? Message::kNone : kind)) return false;
  if (!wire::ends_message(opcode)) return bytes == core_.mtu();
  return bytes <= core_.mtu() && (bytes > 0 || wire::is_only(opcode));
}

Verdict Responder::on_send(const wire::TransportPacket& packet) {
  const Opcode opcode = packet.bth.opcode;
  if (!is_well_formed(packet, Message::kSend)) return refuse(NakCode::kInvalidRequest);
  if (wire::starts_message(opcode)) {
    if (receives_.empty()) {
      send_rnr_nak();
      return Verdict::kContinue;
    }
    receives_.begin_message();
    received_bytes_ = 0;
  }
  const RecvWqe& wqe = receives_.head();
  const std::uint64_t limit =
      std::min<std::uint64_t>(wqe.length, core_.shared.limits.max_message_bytes);
  if (received_bytes_ + packet.payload.size() > limit) {
    fail_receive(WcStatus::kLocalLengthError);
    return close(NakCode::kInvalidRequest);
  }
  if (core_.shared.memory.scatter(receives_.pd(), RecvQueue::sges(wqe), received_bytes_,
                                  packet.payload) != CopyFault::kNone) {
    fail_receive(WcStatus::kLocalProtectionError);
    return close(NakCode::kRemoteOperationalError);
  }
  received_bytes_ += packet.payload.size();
  message_ = wire::ends_message(opcode) ? Message::kNone : Message::kSend;
  if (message_ == Message::kNone) {
    const bool has_immediate = wire::carries_immediate(opcode);
    const bool invalidates = wire::carries_invalidate(opcode);
    // A peer may invalidate only the windows that were bound for it.
    if (invalidates &&
        !core_.shared.memory.invalidate(core_.pd, core_.handle, packet.invalidate_r_key)) {
      fail_receive(WcStatus::kRemoteInvalidRequest);
      return close_without_nak();
    }
    const WorkCompletion completion{.wr_id = wqe.wr_id,
                                    .opcode = WcOpcode::kReceive,
                                    .byte_len = static_cast<std::uint32_t>(received_bytes_),
                                    .immediate = has_immediate ? packet.immediate : 0,
                                    .invalidated_r_key = packet.invalidate_r_key,
                                    .qpn = core_.qpn,
                                    .flags = has_immediate ? wc_flag::kWithImm
                                             : invalidates ? wc_flag::kWithInvalidate
                                                           : 0};
    if (complete_receive(completion, packet.bth.solicited_event) == Verdict::kError) {
      return close(NakCode::kRemoteOperationalError);
    }
  }
  return finish_request(packet, 1);
}

Verdict Responder::on_write(const wire::TransportPacket& packet) {
  const Opcode opcode = packet.bth.opcode;
  const auto bytes = static_cast<std::uint32_t>(packet.payload.size());
  if (!is_well_formed(packet, Message::kWrite)) return refuse(NakCode::kInvalidRequest);
  if ((core_.attributes.access_flags & access::kRemoteWrite) == 0) {
    return refuse(NakCode::kInvalidRequest);
  }
  const bool starts = wire::starts_message(opcode);
  const bool ends = wire::ends_message(opcode);
  const bool has_immediate = wire::carries_immediate(opcode);
  const std::uint64_t address = starts ? packet.reth.virtual_address : write_address_;
  const std::uint32_t remaining = starts ? packet.reth.dma_length_bytes : write_remaining_;
  const std::uint32_t key = starts ? packet.reth.r_key : write_key_;
  if (remaining > core_.shared.limits.max_message_bytes) return refuse(NakCode::kInvalidRequest);
  if (ends ? bytes != remaining : bytes >= remaining) return refuse(NakCode::kInvalidRequest);
  if (has_immediate && receives_.empty()) {
    send_rnr_nak();
    return Verdict::kContinue;
  }
  // The responder checks the whole remaining range for each packet.  An empty WRITE needs no key
  // (vol1 9.7.4.1.5).
  if (remaining > 0) {
    const auto to = core_.remote_memory(key, address, remaining, access::kRemoteWrite);
    if (!to || !core_.shared.memory.write(to->first(bytes), packet.payload)) {
      if (!has_immediate) return refuse(NakCode::kRemoteAccessError);
      // A failed receive of the immediate data reports the error in its completion (vol1 11.6.2).
      fail_receive(WcStatus::kLocalAccessError);
      return close(NakCode::kRemoteAccessError);
    }
  }
  if (starts) write_length_ = packet.reth.dma_length_bytes;
  write_key_ = key;
  write_address_ = address + bytes;
  write_remaining_ = remaining - bytes;
  message_ = ends ? Message::kNone : Message::kWrite;
  if (has_immediate) {
    const WorkCompletion completion{.wr_id = receives_.head().wr_id,
                                    .opcode = WcOpcode::kReceiveWriteImm,
                                    .byte_len = write_length_,
                                    .immediate = packet.immediate,
                                    .qpn = core_.qpn,
                                    .flags = wc_flag::kWithImm};
    if (complete_receive(completion, packet.bth.solicited_event) == Verdict::kError) {
      return close(NakCode::kRemoteOperationalError);
    }
  }
  return finish_request(packet, 1);
}

bool Responder::is_readable(const wire::Reth& reth) const {
  return reth.dma_length_bytes == 0 ||
         core_
             .remote_memory(reth.r_key, reth.virtual_address, reth.dma_length_bytes,
                            access::kRemoteRead)
             .has_value();
}

Responder::Job Responder::read_job(const wire::TransportPacket& packet) const {
  const Psn begin = packet.bth.psn;
  return {.begin = begin,
          .next = begin,
          .end = begin + response_count(packet.reth.dma_length_bytes, core_.mtu()),
          .r_key = packet.reth.r_key,
          .address = packet.reth.virtual_address,
          .length = packet.reth.dma_length_bytes,
          .msn = msn_};
}

Responder::Job Responder::atomic_job(const wire::TransportPacket& packet,
                                     std::uint64_t original) const {
  return {.begin = packet.bth.psn,
          .next = packet.bth.psn,
          .end = packet.bth.psn + 1,
          .msn = msn_,
          .original = original,
          .kind = wire::is_atomic(packet.bth.opcode) ? Kind::kAtomic : Kind::kAtomicWrite};
}

bool Responder::can_queue_response(std::uint32_t psns) {
  if (psns > kPsnSpanMax || !make_job_space(RepeatedJob::kOldest)) return false;
  if (jobs_.empty()) return true;
  const Psn oldest = jobs_.front().next;
  return ((expected_.value - oldest.value) & kMask24) + psns <= kPsnSpanMax;
}

Verdict Responder::on_read(const wire::TransportPacket& packet) {
  const std::uint32_t psns = response_count(packet.reth.dma_length_bytes, core_.mtu());
  const bool allowed = (core_.attributes.access_flags & access::kRemoteRead) != 0 &&
                       packet.reth.dma_length_bytes <= core_.shared.limits.max_message_bytes &&
                       message_ == Message::kNone && can_queue_response(psns);
  if (!allowed) return refuse(NakCode::kInvalidRequest);
  if (!is_readable(packet.reth)) return refuse(NakCode::kRemoteAccessError);
  Job job = read_job(packet);
  job.msn = (msn_ + 1) & kMask24;
  jobs_.push_back(job);
  return finish_request(packet, psns);
}

Verdict Responder::on_atomic(const wire::TransportPacket& packet) {
  const std::uint64_t address = packet.atomic.virtual_address;
  const bool allowed = (core_.attributes.access_flags & access::kRemoteAtomic) != 0 &&
                       message_ == Message::kNone && is_atomic_address(address) &&
                       can_queue_response(1);
  if (!allowed) return refuse(NakCode::kInvalidRequest);
  const auto target =
      core_.remote_memory(packet.atomic.r_key, address, kAtomicBytes, access::kRemoteAtomic);
  if (!target) return refuse(NakCode::kRemoteAccessError);
  // A region's iova may be aligned differently from its address.
  if (!is_atomic_address(reinterpret_cast<std::uintptr_t>(target->data()))) {
    return refuse(NakCode::kInvalidRequest);
  }
  std::uint64_t original = 0;
  const bool done = core_.shared.memory.touch(
      *target, true, [&] { original = execute_atomic(packet.bth.opcode, packet.atomic, *target); });
  return done ? finish_atomic(packet, original) : refuse(NakCode::kRemoteAccessError);
}

// Stores all 8 bytes at once, and only once (vol1 of release 1.5).
Verdict Responder::on_atomic_write(const wire::TransportPacket& packet) {
  const wire::Reth& reth = packet.reth;
  const bool allowed = (core_.attributes.access_flags & access::kRemoteWrite) != 0 &&
                       message_ == Message::kNone && is_atomic_address(reth.virtual_address) &&
                       reth.dma_length_bytes == kAtomicBytes &&
                       packet.payload.size() == kAtomicBytes && can_queue_response(1);
  if (!allowed) return refuse(NakCode::kInvalidRequest);
  const auto target =
      core_.remote_memory(reth.r_key, reth.virtual_address, kAtomicBytes, access::kRemoteWrite);
  if (!target) return refuse(NakCode::kRemoteAccessError);
  if (!is_atomic_address(reinterpret_cast<std::uintptr_t>(target->data()))) {
    return refuse(NakCode::kInvalidRequest);
  }
  if (!core_.shared.memory.write(*target, packet.payload))
    return refuse(NakCode::kRemoteAccessError);
  return finish_atomic(packet, 0);
}

Verdict Responder::finish_atomic(const wire::TransportPacket& packet, std::uint64_t original) {
  atomic_results_.add(packet.bth.psn, original);
  Job job = atomic_job(packet, original);
  job.msn = (msn_ + 1) & kMask24;
  jobs_.push_back(job);
  return finish_request(packet, 1);
}

void Responder::advance_expected_psn(std::uint32_t psns) {
  expected_ = expected_ + psns;
  if (core_.shared.access_table != nullptr) {
    core_.shared.access_table->set_expected_psn(core_.qpn.value, expected_.value);
  }
  gap_reported_ = false;
  rnr_naks_in_row_ = 0;
}

// Handles the record of a direct access, and discards the pending responses.  The peer accesses
// memory directly only when all its requests are complete, so it has these responses already.
bool Responder::on_executed(const link::ExecutedRecord& executed) {
  if (closing_ || message_ != Message::kNone || Psn{executed.first_psn} != expected_ ||
      executed.psns > kPsnSpanMax) {
    return false;
  }
  const bool is_followed_by_packet =
      executed.kind == link::ExecutedRecord::Kind::kWriteBeforeImmediate;
  if (is_followed_by_packet && !begin_write(executed)) return false;
  discard_responses();
  advance_expected_psn(executed.psns);
  if (!is_followed_by_packet) msn_ = (msn_ + 1) & kMask24;
  return true;
}

// Sets the state that the responder has before the last packet of a WRITE, because the peer has
// copied all bytes before this packet.  The values come from the peer's record and are not trusted:
// the last packet is checked against them like any other packet.
bool Responder::begin_write(const link::ExecutedRecord& executed) {
  if (executed.bytes >= executed.message_bytes ||
      executed.bytes != std::uint64_t{executed.psns} * core_.mtu()) {
    return false;
  }
  message_ = Message::kWrite;
  write_length_ = executed.message_bytes;
  write_remaining_ = executed.message_bytes - executed.bytes;
  write_address_ = executed.remote_address + executed.bytes;
  write_key_ = executed.r_key;
  return true;
}

// Advances past a packet that was executed.
Verdict Responder::finish_request(const wire::TransportPacket& packet, std::uint32_t psns) {
  advance_expected_psn(psns);
  if (wire::ends_message(packet.bth.opcode)) msn_ = (msn_ + 1) & kMask24;
  const bool is_answered_by_job =
      packet.bth.opcode == Opcode::kRcReadRequest || has_stored_result(packet.bth.opcode);
  if (pending_ack_ == PendingAck::kNak || (packet.bth.acknowledge_request && !is_answered_by_job)) {
    pending_ack_ = PendingAck::kAck;  // this also replaces a NAK that is still pending
  }
  return Verdict::kContinue;
}

void Responder::on_duplicate(const wire::TransportPacket& packet) {
  if (has_stored_result(packet.bth.opcode)) {
    repeat_atomic(packet);
    return;
  }
  if (packet.bth.opcode != Opcode::kRcReadRequest) {
    if (pending_ack_ == PendingAck::kNone) pending_ack_ = PendingAck::kAck;
    return;
  }
  // A repeated READ must lie within the original READ (vol1 9.7.5.1.4).  The responder checks only
  // that the repeated READ ends before the expected PSN.
  const std::uint32_t psns = response_count(packet.reth.dma_length_bytes, core_.mtu());
  const auto distance = static_cast<std::uint32_t>(-packet.bth.psn.since(expected_));
  if (psns > distance || (core_.attributes.access_flags & access::kRemoteRead) == 0) return;
  if (core_.attributes.max_dest_rd_atomic == 0 || !is_readable(packet.reth)) return;
  repeat_response(read_job(packet));
}

// Repeats the response of an atomic.  Without a stored result, ignores the request: the atomic
// was never executed, or its response arrived long ago.
void Responder::repeat_atomic(const wire::TransportPacket& packet) {
  if (core_.attributes.max_dest_rd_atomic == 0) return;
  if (const auto original = atomic_results_.find(packet.bth.psn)) {
    repeat_response(atomic_job(packet, *original));
  }
}

void Responder::repeat_response(const Job& job) {
  const auto waiting =
      std::ranges::find_if(jobs_, [&](const Job& j) { return job.begin.before(j.end); });
  if (waiting != jobs_.end() && !job.begin.before(waiting->begin)) {
    // The job of this response is pending or partly sent.  If the job has sent the requested PSN
    // already, it starts again at that PSN.
    if (job.begin.before(waiting->next)) {
      const bool is_repeat = waiting->is_repeat;
      *waiting = job;
      waiting->is_repeat = is_repeat;
    }
    return;
  }
  if (!make_job_space(RepeatedJob::kNewest)) return;
  const auto next_job =
      std::ranges::find_if(jobs_, [&](const Job& j) { return job.begin.before(j.end); });
  jobs_.insert(next_job, job)->is_repeat = true;
}

// Makes space for a job.  If there are max_dest_rd_atomic jobs, drops one that only repeats a
// response.  Returns false if there is no such job.  The peer has at most max_dest_rd_atomic READs
// and atomics outstanding.  So a new request shows that the oldest request is complete, and the
// oldest repeat is dropped.  A repeated request shows that the peer will also repeat the requests
// after it, and the newest repeat is dropped.
bool Responder::make_job_space(RepeatedJob which) {
  if (jobs_.size() < core_.attributes.max_dest_rd_atomic) return true;
  const auto is_repeat = [](const Job& job) { return job.is_repeat; };
  auto dropped = std::ranges::find_if(jobs_, is_repeat);  // in PSN order, repeats come first
  if (dropped == jobs_.end()) return false;
  if (which == RepeatedJob::kNewest)
    dropped = std::prev(std::find_if_not(dropped, jobs_.end(), is_repeat));
  jobs_.erase(dropped);
  return true;
}

// ---- receives -----------------------------------------------------------------------------------

Verdict Responder::complete_receive(const WorkCompletion& completion, bool solicited) {
  const WqeSlot slot = receives_.release();
  return core_.shared.complete(core_.recv_cq, completion, slot, solicited) ? Verdict::kContinue
                                                                           : Verdict::kError;
}

void Responder::fail_receive(WcStatus status) {
  const WorkCompletion completion{
      .wr_id = receives_.head().wr_id, .status = status, .qpn = core_.qpn};
  core_.shared.add_failure({.qpn = core_.qpn,
                            .destination_qpn = core_.attributes.destination_qpn,
                            .destination = core_.attributes.path.address.destination,
                            .status = status,
                            .is_receive = true});
  static_cast<void>(complete_receive(completion, true));
}

// Returns the code of the RNR timer for the next RNR NAK.  The timers for the first retries are
// short, because a receive may be only slightly late.  The timers for the last retries are long, so
// that the peer gives up later.
std::uint8_t Responder::next_rnr_timer() {
  // Contains the codes for 655, 82, 10, 1.3 and 0.64 ms.  The first code is for the peer's last
  // retry, the second for the retry before it, and so on.
  static constexpr std::array<std::uint8_t, 5> kCodes{0, 26, 20, 14, 12};
  constexpr std::uint8_t kUnlimitedRetries = 7;
  const std::uint8_t retries = core_.attributes.peer_rnr_retries;
  if (retries == 0 || retries >= kUnlimitedRetries) return core_.attributes.min_rnr_timer;
  rnr_naks_in_row_ =
      std::min<std::uint8_t>(retries, static_cast<std::uint8_t>(rnr_naks_in_row_ + 1));
  return kCodes[std::min<std::size_t>(retries - rnr_naks_in_row_, kCodes.size() - 1)];
}

// Sends an RNR NAK each time that the expected packet arrives.  Later packets get no NAK.
void Responder::send_rnr_nak() {
  gap_reported_ = true;
  pending_ack_ = PendingAck::kNak;
  nak_ = wire::rnr_nak(msn_, next_rnr_timer());
  nak_psn_ = expected_;
  ++core_.shared.counters[Counter::kRnrNaksOut];
  ++core_.traffic.rnr_naks_out;
}

Verdict Responder::refuse(NakCode code) {
  if (code == NakCode::kInvalidRequest) core_.raise(QpEvent::Kind::kRequestError);
  if (code == NakCode::kRemoteAccessError) core_.raise(QpEvent::Kind::kAccessError);
  return close(code);
}

Verdict Responder::close(NakCode code) {
  closing_ = true;
  pending_ack_ = PendingAck::kNak;
  nak_ = wire::nak(msn_, code);
  nak_psn_ = expected_;
  ++core_.shared.counters[Counter::kErrorNaksOut];
  return Verdict::kError;
}

Verdict Responder::close_without_nak() {
  // A pending NAK is obsolete, because the expected packet has arrived.  An acknowledgement
  // replaces it.
  if (pending_ack_ == PendingAck::kNak) pending_ack_ = PendingAck::kAck;
  closing_ = true;
  return Verdict::kError;
}

// ---- responses ----------------------------------------------------------------------------------

Verdict Responder::transmit(link::Burst& burst, unsigned quota, bool* more) {
  Verdict verdict = Verdict::kContinue;
  while (!jobs_.empty() || pending_ack_ != PendingAck::kNone) {
    if (quota == 0 || !core_.prepare_space(burst, core_.attributes.path.address)) {
      *more = true;
      break;
    }
    --quota;
    if (jobs_.empty()) {
      send_acknowledge(burst);
      break;
    }
    Job& job = jobs_.front();
    if (job.kind != Kind::kRead) {
      send_atomic_response(job, burst);
    } else if (!send_read_response(job, burst)) {
      const Psn missing = job.next;
      jobs_.clear();
      verdict = refuse(NakCode::kRemoteAccessError);
      nak_psn_ = missing;
      continue;
    }
    if (job.next == job.end) {
      // The last response packet acknowledges all requests before it.
      if (pending_ack_ == PendingAck::kAck && job.end == expected_)
        pending_ack_ = PendingAck::kNone;
      jobs_.erase(jobs_.begin());
    }
  }
  return verdict;
}

bool Responder::send_read_response(Job& job, link::Burst& burst) {
  const std::uint32_t bytes = std::min(core_.mtu(), job.length);
  const bool last = job.next + 1 == job.end;
  wire::TransportPacket packet;
  packet.bth.opcode =
      last ? (job.started ? Opcode::kRcReadResponseLast : Opcode::kRcReadResponseOnly)
           : (job.started ? Opcode::kRcReadResponseMiddle : Opcode::kRcReadResponseFirst);
  packet.bth.migration_request = core_.migration_request();
  packet.bth.destination_qpn = core_.attributes.destination_qpn;
  packet.bth.psn = job.next;
  packet.aeth = wire::ack(job.msn);
  const Sge from{.address = job.address, .length = bytes, .lkey = job.r_key};
  const bool added = emit(
      core_, burst, core_.attributes.path.address, packet, bytes, [&](std::span<std::byte> out) {
        if (bytes == 0) return true;
        const auto found = core_.remote_memory(from.lkey, from.address, bytes, access::kRemoteRead);
        return found && core_.shared.memory.read(*found, out);
      });
  if (!added) return false;
  job.started = true;
  job.next = job.next + 1;
  job.address += bytes;
  job.length -= bytes;
  return true;
}

void Responder::send_atomic_response(Job& job, link::Burst& burst) {
  wire::TransportPacket packet;
  packet.bth.opcode =
      job.kind == Kind::kAtomic ? Opcode::kRcAtomicAcknowledge : Opcode::kRcReadResponseOnly;
  packet.bth.migration_request = core_.migration_request();
  packet.bth.destination_qpn = core_.attributes.destination_qpn;
  packet.bth.psn = job.next;
  packet.aeth = wire::ack(job.msn);
  packet.atomic_ack.original = job.original;
  emit(core_, burst, core_.attributes.path.address, packet, 0, [](auto) { return true; });
  job.next = job.end;
}

void Responder::send_acknowledge(link::Burst& burst) {
  const bool nak = pending_ack_ == PendingAck::kNak;
  wire::TransportPacket packet;
  packet.bth.opcode = Opcode::kRcAcknowledge;
  packet.bth.migration_request = core_.migration_request();
  packet.bth.destination_qpn = core_.attributes.destination_qpn;
  packet.bth.psn = nak ? nak_psn_ : expected_ - 1;
  packet.aeth = nak ? nak_ : wire::ack(msn_);
  emit(core_, burst, core_.attributes.path.address, packet, 0, [](auto) { return true; });
  pending_ack_ = PendingAck::kNone;
  closing_ = false;
}

}  // namespace verbena::hca
