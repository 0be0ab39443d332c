#include "hca/qp.h"

#include <algorithm>

#include "hca/migration.h"
#include "hca/operations.h"
#include "hca/transitions.h"
#include "wire/mad.h"

namespace verbena::hca {
namespace {

// Grants at least as many inline bytes as the elements of a request occupy.  Some programs use
// inline data without a request for it, because most adapters grant it anyway.
QpInit with_capacities(QpInit init) {
  QpCaps& caps = init.caps;
  if (init.srq) caps.max_recv_wr = caps.max_recv_sge = 0;
  caps.max_inline_bytes =
      std::max(caps.max_inline_bytes, caps.max_send_sge * std::uint32_t{sizeof(Sge)});
  return init;
}

wire::Transport transport_of(QpType type) {
  if (type == QpType::kUd) return wire::Transport::kUd;
  return type == QpType::kUc ? wire::Transport::kUc : wire::Transport::kRc;
}

}  // namespace

Qp::Qp(Shared& shared, Pd& pd, CompletionQueue& send_cq, CompletionQueue& recv_cq,
       SharedReceiveQueue* srq, const QpInit& init, Qpn qpn)
    : core_{.shared = shared,
            .pd = pd,
            .send_cq = send_cq,
            .recv_cq = recv_cq,
            .srq = srq,
            .init = with_capacities(init),
            .qpn = qpn},
      queues_(core_),
      sends_(queues_.sends()),
      receive_source_(queues_.receives(), srq, pd),
      requester_(core_, sends_),
      responder_(core_, receive_source_),
      uc_(core_, sends_, receive_source_),
      ud_(core_, sends_, receive_source_) {
  core_.init.caps.max_send_wr = sends_.capacity();
  core_.init.caps.max_recv_wr = queues_.receives().capacity();
}

// ---- states -------------------------------------------------------------------------------------

Result<void> Qp::modify(const QpAttributes& target, std::uint32_t mask) {
  const QpState from = core_.attributes.state;
  VB_TRY_VOID(check_transition(core_.init.type, core_.attributes, target, mask, core_.shared.limits,
                               core_.shared.ports, core_.init.device));
  const QpState to = (mask & attribute::kState) != 0 ? target.state : from;
  if (to == QpState::kReset) {
    reset();
    return {};
  }
  apply(target, mask);
  if (to == QpState::kError) {
    responder_.discard_responses();
    enter_error();
    return {};
  }
  if (to == QpState::kRtr && from != to) {
    responder_.start();
    uc_.start_receiving();
    generation_ = ++core_.shared.connections;
  }
  if (to == QpState::kRts && from == QpState::kRtr) {
    requester_.start();
    uc_.start_sending();
    ud_.start();
  }
  if (to == QpState::kSqd && from != to) is_drained_ = false;
  if (to != from) queues_.set_state(to);
  report_if_drained();
  return {};
}

void Qp::apply(const QpAttributes& target, std::uint32_t mask) {
  using namespace attribute;
  QpAttributes& a = core_.attributes;
  const auto set = [&](std::uint32_t bit, auto QpAttributes::*member) {
    if ((mask & bit) != 0) a.*member = target.*member;
  };
  set(kSqdNotify, &QpAttributes::sqd_notify);
  set(kAccessFlags, &QpAttributes::access_flags);
  set(kPkeyIndex, &QpAttributes::pkey_index);
  set(kPort, &QpAttributes::port);
  set(kQkey, &QpAttributes::qkey);
  set(kPath, &QpAttributes::path);
  set(kPathMtu, &QpAttributes::path_mtu);
  set(kTimeout, &QpAttributes::timeout);
  set(kRetryCount, &QpAttributes::retry_count);
  set(kRnrRetry, &QpAttributes::rnr_retry);
  set(kRqPsn, &QpAttributes::rq_psn);
  set(kMaxRdAtomic, &QpAttributes::max_rd_atomic);
  set(kMinRnrTimer, &QpAttributes::min_rnr_timer);
  set(kMinRnrTimer, &QpAttributes::peer_rnr_retries);
  set(kSqPsn, &QpAttributes::sq_psn);
  set(kMaxDestRdAtomic, &QpAttributes::max_dest_rd_atomic);
  set(kDestinationQpn, &QpAttributes::destination_qpn);
  set(kAlternatePath, &QpAttributes::alternate_path);
  set(kAlternatePath, &QpAttributes::alternate_pkey_index);
  set(kAlternatePath, &QpAttributes::alternate_port);
  set(kAlternatePath, &QpAttributes::alternate_timeout);
  if ((mask & kMigrationState) != 0 && set_migration(core_, target.migration)) {
    requester_.on_path_changed();
  }
  // Allocates memory for the maximum of outstanding requests here, so that the data path never
  // allocates.
  requester_.reserve(a.max_rd_atomic);
  responder_.reserve(a.max_dest_rd_atomic);
}

// The completions of a QP are removed when the QP is reset or destroyed, as with hardware.
void Qp::discard_completions() {
  core_.send_cq.remove_completions(core_.qpn);
  if (&core_.recv_cq != &core_.send_cq) core_.recv_cq.remove_completions(core_.qpn);
  receive_source_.drop_taken();
}

void Qp::reset() {
  queues_.set_state(QpState::kReset);
  discard_completions();
  queues_.clear();
  core_.events_pending = 0;
  core_.shared.qp_events.remove(core_);
  detach_lane();
  requester_.start();
  responder_.start();
  uc_.start_sending();
  ud_.start();
  has_received_packet_ = is_marked_established_ = is_drained_ = false;
  flush_at_ = kNever;
  accesses_.clear();
}

void Qp::enter_error() {
  if (core_.attributes.state == QpState::kError) return;
  queues_.set_state(QpState::kError);
  publish_access();
  if (core_.shared.lanes != nullptr) accesses_ = core_.shared.lanes->accesses();
  flush_at_ = core_.shared.now + core_.shared.personality.flush_delay;
  if (core_.shared.now >= flush_at_) flush();
}

bool Qp::peer_accesses_have_ended() {
  return accesses_.empty() || core_.shared.lanes == nullptr ||
         core_.shared.lanes->remove_ended_accesses(accesses_);
}

// Waits until the direct accesses of peers have ended, because the flush tells the program that no
// peer writes to its memory through this QP any more.
void Qp::flush() {
  constexpr Duration kCheckInterval = std::chrono::microseconds(50);
  if (!peer_accesses_have_ended()) {
    flush_at_ = core_.shared.now + kCheckInterval;
    return;
  }
  flush_at_ = kNever;
  flush_sends();
  flush_receives();
  // The QP takes no more receives from its SRQ, and all receives that it took are complete
  // (vol1 11.6.3.1).
  if (receive_source_.is_shared()) core_.raise(QpEvent::Kind::kLastWqe);
}

// Handles an error that the requester, the responder, the UC or the UD transport has reported.
void Qp::on_transport_error() {
  ++core_.shared.counters[Counter::kQpErrors];
  enter_error();
}

void Qp::flush_sends() {
  // Packets in the last burst were sent, so their requests complete with success.
  const QpType type = core_.init.type;
  if (type == QpType::kUc) static_cast<void>(uc_.complete_sent());
  if (type == QpType::kUd) static_cast<void>(ud_.complete_sent());
  while (!sends_.empty()) {
    const WorkCompletion completion{
        .wr_id = sends_.at(sends_.head()).wr_id, .status = WcStatus::kFlushed, .qpn = core_.qpn};
    static_cast<void>(core_.shared.complete(core_.send_cq, completion, sends_.release(), true));
  }
  uc_.on_flushed();
}

void Qp::flush_receives() {
  while (receive_source_.is_shared() ? receive_source_.in_message() : !receive_source_.empty()) {
    const WorkCompletion completion{.wr_id = receive_source_.head().wr_id,
                                    .status = WcStatus::kFlushed,
                                    .opcode = WcOpcode::kReceive,
                                    .qpn = core_.qpn};
    static_cast<void>(
        core_.shared.complete(core_.recv_cq, completion, receive_source_.release(), true));
  }
}

QpAttributes Qp::attributes() const {
  QpAttributes a = core_.attributes;
  a.current_state = a.state;
  const QpType type = core_.init.type;
  if (a.state >= QpState::kRtr && type == QpType::kRc) a.rq_psn = responder_.expected_psn();
  if (a.state >= QpState::kRtr && type == QpType::kUc) a.rq_psn = uc_.expected_psn();
  if (a.state >= QpState::kRts) {
    a.sq_psn = type == QpType::kRc   ? requester_.next_psn()
               : type == QpType::kUc ? uc_.next_psn()
                                     : ud_.next_psn();
  }
  return a;
}

QpRow Qp::row() const {
  QpRow row{core_.traffic};
  const QpAttributes a = attributes();
  row.qpn = core_.qpn.value;
  row.type = core_.init.type;
  row.state = a.state;
  row.path_mtu = a.path_mtu;
  row.destination_qpn = a.destination_qpn.value;
  row.source = a.path.address.source;
  row.destination = a.path.address.destination;
  row.link_layer = a.path.address.link_layer;
  row.source_lid = a.path.address.source_lid;
  row.destination_lid = a.path.address.destination_lid;
  row.send_psn = a.sq_psn.value;
  row.acked_psn = core_.init.type == QpType::kRc ? requester_.oldest_psn().value : a.sq_psn.value;
  row.expected_psn = a.rq_psn.value;
  row.send_queued = sends_.size();
  row.recv_queued = queues_.receives().size();
  row.window_packets = requester_.window_packets();
  return row;
}

// Returns true in the states in which the responder works.
bool Qp::accepts_requests() const {
  const QpState state = core_.attributes.state;
  return core_.init.type == QpType::kRc &&
         (state == QpState::kRtr || state == QpState::kRts || state == QpState::kSqd);
}

// Publishes only the rights that the responder would accept now.  A QP that may migrate publishes
// nothing, because a packet could change its peer's address.
void Qp::publish_access() {
  link::AccessTable* const table = core_.shared.access_table;
  if (table == nullptr || core_.init.type != QpType::kRc) return;
  const QpAttributes& a = core_.attributes;
  // A peer checks the length of a message only against its own limit.  The default limit is the
  // maximum of the specification.  So a QP with a smaller limit is not published.
  const bool has_default_limit =
      core_.shared.limits.max_message_bytes >= Limits{}.max_message_bytes;
  if (!accepts_requests() || a.migration != MigrationState::kMigrated || !has_default_limit) {
    table->remove_qp(core_.qpn.value);
    return;
  }
  const Pkey pkey = core_.shared.ports.pkeys(core_.port()).at(a.pkey_index);
  const std::uint32_t allowed =
      access::kRemoteWrite | (a.max_dest_rd_atomic != 0 ? access::kRemoteRead : 0U);
  const bool published =
      table->publish(link::QpRow{.qpn = core_.qpn.value,
                                 .peer_qpn = a.destination_qpn.value,
                                 .peer = a.path.address.destination,
                                 .generation = generation_,
                                 .domain = domain_of(core_.pd),
                                 .access_flags = a.access_flags & allowed,
                                 .pkey = pkey.value,
                                 .mtu = static_cast<std::uint8_t>(a.path_mtu),
                                 .expected_psn = responder_.expected_psn().value});
  if (!published) ++core_.shared.counters[Counter::kLimitPublished];
}

// ---- driving ------------------------------------------------------------------------------------

// QP1 serves every partition of the port (vol1 10.9.8).  A packet that makes an armed QP migrate
// belongs to the partition of the alternate path.
bool Qp::is_from_partition(const wire::Bth& bth, const link::Address& address) const {
  const Ports& ports = core_.shared.ports;
  if (core_.is_gsi()) return ports.pkeys(address.port).admits(bth.pkey);
  const QpAttributes& a = core_.attributes;
  if (a.migration == MigrationState::kArmed && bth.migration_request &&
      link::is_on_path(address, a.alternate_path.address)) {
    return ports.pkeys(address.port).admits(a.alternate_pkey_index, bth.pkey);
  }
  return ports.pkeys(core_.port()).admits(a.pkey_index, bth.pkey);
}

// A UD QP receives from every peer, but only by its own port; QP1 receives by all ports.  For a
// connected QP, a packet on the alternate path can show that the peer has migrated.  Then this QP
// migrates, too.
bool Qp::is_from_peer(const wire::Bth& bth, const link::Address& address) {
  if (core_.init.type == QpType::kUd) return core_.is_gsi() || address.port == core_.port();
  const MigrationState before = core_.attributes.migration;
  if (!admit(core_, bth, address)) return false;
  if (before == MigrationState::kArmed && core_.attributes.migration == MigrationState::kMigrated) {
    requester_.on_path_changed();
  }
  return true;
}

void Qp::receive(const wire::TransportPacket& packet, const link::Arrival& arrival, Time now) {
  const QpType type = core_.init.type;
  const QpState state = core_.attributes.state;
  Counters& counters = core_.shared.counters;
  if (wire::transport_of(packet.bth.opcode) != transport_of(type)) {
    ++counters[Counter::kDropWrongTransport];
  } else if (state < QpState::kRtr || state == QpState::kError ||
             (!wire::is_request(packet.bth.opcode) && state < QpState::kRts)) {
    ++counters[Counter::kDropBadState];
  } else if (!is_from_partition(packet.bth, arrival.address)) {
    ++counters[Counter::kDropBadPkey];
  } else if (!is_from_peer(packet.bth, arrival.address)) {
    ++counters[Counter::kDropWrongSource];
  } else {
    ++counters[Counter::kPacketsToQps];
    ++core_.traffic.packets_in;
    core_.traffic.bytes_in += packet.payload.size();
    const Verdict verdict =
        type == QpType::kUd ? ud_.receive(packet, arrival) : dispatch(packet, now);
    if (verdict == Verdict::kError) on_transport_error();
    report_if_drained();
  }
}

void Qp::receive(const link::ExecutedRecord& executed) {
  const bool matches_connection = accepts_requests() && executed.generation == generation_ &&
                                  executed.initiator_qpn == core_.attributes.destination_qpn.value;
  if (!matches_connection || !responder_.on_executed(executed)) {
    ++core_.shared.counters[Counter::kDropExecuted];
    return;
  }
  note_first_packet();
  const bool is_read = executed.kind == link::ExecutedRecord::Kind::kRead;
  core_.count_direct(is_read, is_read ? DataFlow::kOut : DataFlow::kIn, executed.psns,
                     executed.bytes);
}

// Reports the first packet.  The specification defines the event "communication established" only
// for RTR (vol1 11.6.3.1).  The CM also needs such an event after RTR, because the QP of a passive
// side is in RTS before the RTU arrives.
void Qp::note_first_packet() {
  if (has_received_packet_) return;
  has_received_packet_ = true;
  if (core_.attributes.state == QpState::kRtr) {
    core_.raise(QpEvent::Kind::kCommEst);
  } else if (!is_marked_established_) {
    core_.raise(QpEvent::Kind::kFirstPacket);
  }
}

Verdict Qp::dispatch(const wire::TransportPacket& packet, Time now) {
  if (core_.init.type == QpType::kUc) {
    note_first_packet();
    return uc_.receive(packet);
  }
  if (wire::is_request(packet.bth.opcode)) {
    if (responder_.expects(packet.bth.psn)) note_first_packet();
    return responder_.on_request(packet);
  }
  return packet.bth.opcode == wire::Opcode::kRcAcknowledge ? requester_.on_acknowledge(packet, now)
                                                           : requester_.on_response(packet, now);
}

// Chooses the lane for the next packets.  An RC QP may change to a lane at any time, because PSNs
// order its packets.  Packets of a UC QP must not overtake each other, so it keeps the link of its
// first packet, as long as that link exists.  A UD QP chooses for each packet.
void Qp::choose_lane() {
  core_.lane_is_full = false;
  if (core_.init.type == QpType::kUd || core_.attributes.state < QpState::kRtr) return;
  if (uc_link_) {
    core_.lane = *uc_link_;
    return;
  }
  const link::Lane* const last_lane = core_.lane;
  core_.choose_lane(core_.attributes.path.address, core_.attributes.destination_qpn);
  if (core_.lane != last_lane) requester_.on_lane_changed();
  if (core_.init.type == QpType::kUc && core_.attributes.state >= QpState::kRts && !sends_.empty())
    uc_link_ = core_.lane;
}

void Qp::detach_lane() {
  core_.lane = nullptr;
  core_.lane_is_full = false;
  uc_link_.reset();
  requester_.on_lane_changed();
}

bool Qp::transmit(link::Burst& burst, Time now) {
  const QpState state = core_.attributes.state;
  bool more = false;
  choose_lane();
  switch (state) {
    case QpState::kReset:
    case QpState::kInit: return false;
    case QpState::kError:
      if (flush_at_ == kNever) {  // the QP was flushed; this flushes the posts since then
        flush_sends();
        flush_receives();
      }
      if (responder_.is_closing())
        static_cast<void>(responder_.transmit(burst, kQuotaPackets, &more));
      return more;
    case QpState::kSqe: flush_sends(); return false;
    case QpState::kRtr:
    case QpState::kRts:
    case QpState::kSqd: break;
  }
  const bool may_begin = state == QpState::kRts;
  if (core_.init.type != QpType::kRc) {
    return state >= QpState::kRts && transmit_unreliable(burst, may_begin);
  }
  // In a burst with enough space, a pending acknowledgement follows the requests.  The last packet
  // of a batch may be shorter than the others, so the acknowledgement can join the batch.  A lane
  // has no batches.  There the acknowledgement goes first: otherwise the peer could see the
  // program's answer to a request before the acknowledgement of that request.
  const bool responses_first =
      core_.lane != nullptr || responder_.has_jobs() || burst.free_packets() <= kQuotaPackets;
  if (responses_first && responder_.transmit(burst, kQuotaPackets, &more) == Verdict::kError) {
    on_transport_error();
    return true;  // the NAK must still be sent
  }
  const bool failed = state >= QpState::kRts && requester_.transmit(burst, kQuotaPackets, may_begin,
                                                                    now, &more) == Verdict::kError;
  // Acknowledges the packets that were received from the peer, even if a request of this QP failed.
  if (!responses_first && responder_.transmit(burst, kQuotaPackets, &more) == Verdict::kError) {
    on_transport_error();
    return true;
  }
  if (failed) {
    on_transport_error();
    return responder_.is_closing();
  }
  report_if_drained();
  return more;
}

// Sends for UC and UD.
bool Qp::transmit_unreliable(link::Burst& burst, bool may_begin) {
  bool more = false;
  Verdict verdict = Verdict::kContinue;
  if (core_.init.type == QpType::kUc) {
    verdict = uc_.transmit(burst, kQuotaPackets, may_begin, &more);
  } else {
    verdict = ud_.transmit(burst, kQuotaPackets, may_begin, &more);
  }
  if (verdict == Verdict::kError) on_send_failed();
  report_if_drained();
  return more;
}

// With a lane, posts do not wait: a packet in a lane costs no system call, so a batch gains
// nothing.
bool Qp::posts_can_wait() const {
  return core_.init.type == QpType::kRc && core_.attributes.state == QpState::kRts &&
         core_.lane == nullptr && requester_.posts_can_wait();
}

void Qp::on_burst_sent() {
  const bool good =
      uc_.complete_sent() == Verdict::kContinue && ud_.complete_sent() == Verdict::kContinue;
  // In the error state, flush() completes the other requests.
  if (!good && core_.attributes.state != QpState::kError) on_send_failed();
  report_if_drained();
}

void Qp::on_send_failed() {
  queues_.set_state(QpState::kSqe);  // receiving continues (vol1 10.3.1.6)
  flush_sends();
}

void Qp::on_timer(Time now) {
  if (now < deadline()) return;
  if (flush_at_ != kNever) return flush();
  if (requester_.on_timer(now) == Verdict::kError) on_transport_error();
  report_if_drained();
}

Time Qp::deadline() const {
  if (flush_at_ != kNever) return flush_at_;
  const QpState state = core_.attributes.state;
  const bool is_sending = state == QpState::kRts || state == QpState::kSqd;
  return core_.init.type == QpType::kRc && is_sending ? requester_.deadline() : kNever;
}

// Reports once in SQD that the send queue is drained: all requests that were started are complete
// (vol1 10.3.1.5).  Raises the event only if the program has requested it.
void Qp::report_if_drained() {
  const QpAttributes& a = core_.attributes;
  if (a.state != QpState::kSqd || is_drained_) return;
  if (core_.init.type == QpType::kRc && !requester_.drained()) return;
  if (core_.init.type == QpType::kUc && !uc_.drained()) return;
  if (core_.init.type == QpType::kUd && !ud_.drained()) return;
  is_drained_ = true;
  if (a.sqd_notify) core_.raise(QpEvent::Kind::kSqDrained);
}

}  // namespace verbena::hca
