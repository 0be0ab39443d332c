#include "hca/qp.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "hca/migration.h"
#include "hca/operations.h"
#include "hca/transitions.h"
#include "wire/mad.h"

namespace verbena::hca {
namespace {

// The room for elements also serves for inline bytes: some programs use inline data without having
// requested it, because most adapters grant some.
QpInit with_capacities(QpInit init) {
  QpCaps& caps = init.caps;
  if (init.srq) caps.max_recv_wr = caps.max_recv_sge = 0;
  caps.max_inline_bytes =
      std::max(caps.max_inline_bytes, caps.max_send_sge * std::uint32_t{sizeof(Sge)});
  return init;
}

// Returns the room for the elements and the copy of a small request, or for inline bytes.
std::uint32_t send_element_bytes(const QpCaps& caps) {
  const auto elements = caps.max_send_sge * static_cast<std::uint32_t>(sizeof(Sge));
  return std::max(caps.max_inline_bytes, elements + kCopiedBytesMax);
}

template <class Wqe>
std::uint64_t copy_sges(Wqe& wqe, std::span<const Sge> sges) {
  std::uint64_t length = 0;
  Sge* const to = WorkQueue<Wqe>::sge_room(wqe);
  for (std::size_t i = 0; i < sges.size(); ++i) {
    ::new (to + i) Sge(sges[i]);
    length += sges[i].length;
  }
  wqe.sge_count = static_cast<decltype(wqe.sge_count)>(sges.size());
  return length;
}

// Copies inline data while the user posts it, which needs no key (vol1 10.7.2).
void copy_inline(std::byte* to, std::span<const Sge> sges) {
  for (const Sge& sge : sges) {
    if (sge.length == 0) continue;
    const auto address = static_cast<std::uintptr_t>(sge.address);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs name memory by number
    std::memcpy(to, reinterpret_cast<const std::byte*>(address), sge.length);
    to += sge.length;
  }
}

// Returns true if the transport supports this request (vol1 9.3, table 38; 10.6.7.2 for windows).
bool supports(QpType type, WrOpcode opcode) {
  const bool send = opcode == WrOpcode::kSend || opcode == WrOpcode::kSendImm;
  const bool write = opcode == WrOpcode::kWrite || opcode == WrOpcode::kWriteImm;
  if (type == QpType::kUd) return send;
  return type == QpType::kRc || send || write || is_local(opcode);
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
      sends_(init.caps.max_send_wr, send_element_bytes(core_.init.caps),
             init.type == QpType::kUd ? sizeof(DatagramTarget) : 0),
      receives_(core_.init.caps.max_recv_wr,
                core_.init.caps.max_recv_sge * static_cast<std::uint32_t>(sizeof(Sge))),
      source_(receives_, srq, pd),
      requester_(core_, sends_),
      responder_(core_, source_),
      uc_(core_, sends_, source_),
      ud_(core_, sends_, source_) {
  core_.init.caps.max_send_wr = sends_.capacity();
  core_.init.caps.max_recv_wr = receives_.capacity();
}

// ---- posting ------------------------------------------------------------------------------------

Result<void> Qp::check_send(const SendRequest& request, const AddressHandle* ah,
                            std::uint64_t length) const {
  const QpCaps& caps = core_.init.caps;
  const bool inlined = (request.flags & send_flag::kInline) != 0;
  if (request.opcode > WrOpcode::kSendInvalidate && request.opcode != WrOpcode::kAtomicWrite) {
    return fail(Errc::kNotSupported, "this send opcode is not supported");
  }
  if (request.sges.size() > caps.max_send_sge) {
    return fail(Errc::kInvalidArgument, "more elements than max_send_sge");
  }
  if (inlined && (fills_elements(request.opcode) || length > caps.max_inline_bytes)) {
    return fail(
        Errc::kInvalidArgument,
        "inline data is longer than max_inline_bytes, or the request is a READ or an atomic");
  }
  if (!supports(core_.init.type, request.opcode)) {
    return fail(Errc::kInvalidArgument,
                "UD supports only SEND; UC supports only SEND, WRITE and memory windows");
  }
  if (core_.init.type != QpType::kUd) return {};
  if (ah == nullptr) return fail(Errc::kBadHandle, "no such address handle");
  if (&ah->pd != &core_.pd) {
    return fail(Errc::kInvalidArgument, "the address handle is of another protection domain");
  }
  if (ah->path.address.port.device != core_.init.device && !core_.is_gsi()) {
    return fail(Errc::kInvalidArgument, "the address handle is of another device");
  }
  if (request.remote_qpn.value > kMask24) {
    return fail(Errc::kInvalidArgument, "remote_qpn has more than 24 bits");
  }
  return {};
}

// Copies a small request's bytes at the post, because the driver may handle it much later.
void Qp::copy_small(SendWqe& wqe) const {
  if (wqe.length == 0 || wqe.length > kCopiedBytesMax) return;
  if (fills_elements(wqe.opcode) || is_local(wqe.opcode)) return;
  const std::span<std::byte> room(SendQueue::byte_room(wqe), wqe.length);
  wqe.keys_seen = core_.shared.memory.generation();  // before the keys are looked up
  if (core_.shared.memory.copy_for_post(core_.pd, SendQueue::sges(wqe), room)) {
    wqe.flags |= kCopiedFlag;
  }
}

Result<bool> Qp::post_send(const SendRequest& request, const AddressHandle* ah) {
  std::uint64_t length = 0;
  for (const Sge& sge : request.sges) length += sge.length;
  VB_TRY_VOID(check_send(request, ah, length));

  const std::scoped_lock lock(sends_.mutex());
  const QpState state = state_.load(std::memory_order_relaxed);
  if (state < QpState::kRts) return fail(Errc::kBadState, "the QP is not ready to send");
  if (sends_.full()) {
    core_.shared.full_sends.fetch_add(1, std::memory_order_relaxed);
    return fail(Errc::kNoResources, "the send queue is full");
  }
  SendWqe& wqe = sends_.prepare();
  wqe.wr_id = request.wr_id;
  wqe.length = saturated_length(length);
  wqe.r_key = request.r_key;
  wqe.flags = static_cast<std::uint8_t>(request.flags & ~std::uint32_t{kCopiedFlag});
  wqe.immediate = request.immediate;
  wqe.opcode = request.opcode;
  if ((request.flags & send_flag::kInline) != 0) {
    wqe.sge_count = 0;
    copy_inline(SendQueue::byte_room(wqe), request.sges);
  } else {
    copy_sges(wqe, request.sges);
    copy_small(wqe);
  }
  if (request.opcode == WrOpcode::kBindWindow) {
    ::new (&wqe.bind) WindowBinding(request.bind);
  } else {
    ::new (&wqe.remote) SendWqe::Remote{request.remote_address, request.compare_add, request.swap};
  }
  if (core_.init.type == QpType::kUd) {
    ::new (sends_.extra_room(wqe))
        DatagramTarget{ah->path.address, request.remote_qpn, request.remote_qkey};
  }
  sends_.publish();
  return true;
}

Result<bool> Qp::post_recv(const RecvRequest& request) {
  if (core_.srq != nullptr) {
    return fail(Errc::kInvalidArgument, "the receives of this QP are posted to its SRQ");
  }
  if (request.sges.size() > core_.init.caps.max_recv_sge) {
    return fail(Errc::kInvalidArgument, "more elements than max_recv_sge");
  }
  const std::scoped_lock lock(receives_.mutex());
  const QpState state = state_.load(std::memory_order_relaxed);
  if (state == QpState::kReset) return fail(Errc::kBadState, "the QP is in RESET");
  if (receives_.full()) {
    core_.shared.full_receives.fetch_add(1, std::memory_order_relaxed);
    return fail(Errc::kNoResources, "the receive queue is full");
  }
  RecvWqe& wqe = receives_.prepare();
  wqe.wr_id = request.wr_id;
  wqe.length = saturated_length(copy_sges(wqe, request.sges));
  receives_.publish();
  return state == QpState::kError;
}

// ---- states -------------------------------------------------------------------------------------

Result<void> Qp::modify(const QpAttributes& wanted, std::uint32_t mask) {
  const QpState from = core_.attributes.state;
  VB_TRY_VOID(check_transition(core_.init.type, core_.attributes, wanted, mask, core_.shared.limits,
                               core_.shared.ports, core_.init.device));
  const QpState to = (mask & attribute::kState) != 0 ? wanted.state : from;
  if (to == QpState::kReset) {
    reset();
    return {};
  }
  apply(wanted, mask);
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
  if (to == QpState::kSqd && from != to) drain_reported_ = false;
  if (to != from) set_state(to);
  report_if_drained();
  return {};
}

void Qp::apply(const QpAttributes& wanted, std::uint32_t mask) {
  using namespace attribute;
  QpAttributes& a = core_.attributes;
  const auto take = [&](std::uint32_t bit, auto QpAttributes::*member) {
    if ((mask & bit) != 0) a.*member = wanted.*member;
  };
  take(kSqdNotify, &QpAttributes::sqd_notify);
  take(kAccessFlags, &QpAttributes::access_flags);
  take(kPkeyIndex, &QpAttributes::pkey_index);
  take(kPort, &QpAttributes::port);
  take(kQkey, &QpAttributes::qkey);
  take(kPath, &QpAttributes::path);
  take(kPathMtu, &QpAttributes::path_mtu);
  take(kTimeout, &QpAttributes::timeout);
  take(kRetryCount, &QpAttributes::retry_count);
  take(kRnrRetry, &QpAttributes::rnr_retry);
  take(kRqPsn, &QpAttributes::rq_psn);
  take(kMaxRdAtomic, &QpAttributes::max_rd_atomic);
  take(kMinRnrTimer, &QpAttributes::min_rnr_timer);
  take(kMinRnrTimer, &QpAttributes::peer_rnr_retries);
  take(kSqPsn, &QpAttributes::sq_psn);
  take(kMaxDestRdAtomic, &QpAttributes::max_dest_rd_atomic);
  take(kDestinationQpn, &QpAttributes::destination_qpn);
  take(kAlternatePath, &QpAttributes::alternate_path);
  take(kAlternatePath, &QpAttributes::alternate_pkey_index);
  take(kAlternatePath, &QpAttributes::alternate_port);
  take(kAlternatePath, &QpAttributes::alternate_timeout);
  if ((mask & kMigrationState) != 0 && set_migration(core_, wanted.migration)) {
    requester_.on_path_changed();
  }
  // Allocates for the maximum of outstanding requests here, so that the data path never does.
  requester_.reserve(a.max_rd_atomic);
  responder_.reserve(a.max_dest_rd_atomic);
}

void Qp::set_state(QpState state) {
  const std::scoped_lock lock(sends_.mutex(), receives_.mutex());
  core_.attributes.state = state;
  state_.store(state, std::memory_order_relaxed);
}

// A QP's completions disappear when it is reset or destroyed, as with hardware.
void Qp::discard_completions() {
  core_.send_cq.forget(core_.qpn);
  if (&core_.recv_cq != &core_.send_cq) core_.recv_cq.forget(core_.qpn);
  source_.drop();
}

void Qp::reset() {
  set_state(QpState::kReset);
  discard_completions();
  const std::scoped_lock lock(sends_.mutex(), receives_.mutex());
  sends_.clear();
  receives_.clear();
  core_.attributes = {};
  core_.events_pending = 0;
  core_.shared.qp_events.remove(core_);
  forget_lane();
  link_is_chosen_ = false;
  requester_.start();
  responder_.start();
  uc_.start_sending();
  ud_.start();
  first_packet_came_ = known_established_ = drain_reported_ = false;
  flush_at_ = kNever;
  accesses_.clear();
}

void Qp::enter_error() {
  if (core_.attributes.state == QpState::kError) return;
  set_state(QpState::kError);
  publish_access();
  if (core_.shared.lanes != nullptr) accesses_ = core_.shared.lanes->accesses();
  flush_at_ = core_.shared.now + core_.shared.personality.flush_delay;
  if (core_.shared.now >= flush_at_) flush();
}

bool Qp::accesses_are_over() {
  return accesses_.empty() || core_.shared.lanes == nullptr ||
         core_.shared.lanes->are_over(accesses_);
}

// The flush tells the program that no peer writes to its memory through this QP any more.
void Qp::flush() {
  constexpr Duration kLookAgain = std::chrono::microseconds(50);
  if (!accesses_are_over()) {
    flush_at_ = core_.shared.now + kLookAgain;
    return;
  }
  flush_at_ = kNever;
  flush_sends();
  flush_receives();
  // The QP takes no more receives from its SRQ and has completed those it took (vol1 11.6.3.1).
  if (source_.is_shared()) core_.raise(QpEvent::Kind::kLastWqe);
}

// Handles an error that the requester, the responder, or the UC or UD code of this QP reported.
void Qp::on_own_error() {
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
  uc_.flushed();
}

void Qp::flush_receives() {
  while (source_.is_shared() ? source_.in_message() : !source_.empty()) {
    const WorkCompletion completion{.wr_id = source_.head().wr_id,
                                    .status = WcStatus::kFlushed,
                                    .opcode = WcOpcode::kReceive,
                                    .qpn = core_.qpn};
    static_cast<void>(core_.shared.complete(core_.recv_cq, completion, source_.release(), true));
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
  row.recv_queued = receives_.size();
  row.window_packets = requester_.window_packets();
  return row;
}

// Returns true in the states in which the responder works.
bool Qp::accepts_requests() const {
  const QpState state = core_.attributes.state;
  return core_.init.type == QpType::kRc &&
         (state == QpState::kRtr || state == QpState::kRts || state == QpState::kSqd);
}

// A row grants only what the responder would accept now.  A QP that may migrate publishes nothing,
// because a packet could change its peer's address.
void Qp::publish_access() {
  link::AccessTable* const table = core_.shared.access_table;
  if (table == nullptr || core_.init.type != QpType::kRc) return;
  const QpAttributes& a = core_.attributes;
  // A peer checks only its own limit of a message, which is the specification's by default.
  const bool has_usual_limit = core_.shared.limits.max_message_bytes >= Limits{}.max_message_bytes;
  if (!accepts_requests() || a.migration != MigrationState::kMigrated || !has_usual_limit) {
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

// A UD QP receives from every peer, but only by its own port.  For a connected QP, a packet on the
// alternate path can show that the peer has migrated.  Then this QP follows it.
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
    if (verdict == Verdict::kError) on_own_error();
    report_if_drained();
  }
}

void Qp::receive(const link::Executed& executed) {
  const bool fits = accepts_requests() && executed.generation == generation_ &&
                    executed.initiator_qpn == core_.attributes.destination_qpn.value;
  if (!fits || !responder_.on_executed(executed)) {
    ++core_.shared.counters[Counter::kDropExecuted];
    return;
  }
  note_first_packet();
  const bool is_read = executed.kind == link::Executed::Kind::kRead;
  core_.count_direct(is_read, is_read ? DataFlow::kOut : DataFlow::kIn, executed.psns,
                     executed.bytes);
}

// Reports the first packet.  The specification has "communication established" only in RTR (vol1
// 11.6.3.1).  The CM also needs it after RTR, because the QP of a passive side is in RTS before the
// RTU comes.
void Qp::note_first_packet() {
  if (first_packet_came_) return;
  first_packet_came_ = true;
  if (core_.attributes.state == QpState::kRtr) {
    core_.raise(QpEvent::Kind::kCommEst);
  } else if (!known_established_) {
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
// order its packets.  Packets of a UC QP must not overtake each other, so it stays with the link of
// its first packet.  A UD QP chooses for each packet.
void Qp::choose_lane() {
  core_.lane_is_full = false;
  if (core_.init.type == QpType::kUd || core_.attributes.state < QpState::kRtr) return;
  if (link_is_chosen_) return;
  core_.choose_lane(core_.attributes.path.address, core_.attributes.destination_qpn);
  link_is_chosen_ =
      core_.init.type == QpType::kUc && core_.attributes.state >= QpState::kRts && !sends_.empty();
}

void Qp::forget_lane() {
  core_.lane = nullptr;
  core_.lane_is_full = false;
  requester_.forget_lane();
}

bool Qp::transmit(link::Burst& burst, Time now) {
  const QpState state = core_.attributes.state;
  bool more = false;
  choose_lane();
  switch (state) {
    case QpState::kReset:
    case QpState::kInit: return false;
    case QpState::kError:
      if (flush_at_ == kNever) {  // flushed already: flushes the newer posts
        flush_sends();
        flush_receives();
      }
      if (responder_.closing()) static_cast<void>(responder_.transmit(burst, kQuotaPackets, &more));
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
  // If only an acknowledgement is due, the requests go first: a batch may end with a shorter
  // packet, so the acknowledgement can join it.  There must be room for it behind them.  A lane has
  // no batches: its peer could see the end of a request later than the answer of the program to it.
  const bool answers_first =
      core_.lane != nullptr || responder_.has_jobs() || burst.room() <= kQuotaPackets;
  if (answers_first && responder_.transmit(burst, kQuotaPackets, &more) == Verdict::kError) {
    on_own_error();
    return true;  // the NAK is to be sent
  }
  const bool failed = state >= QpState::kRts && requester_.transmit(burst, kQuotaPackets, may_begin,
                                                                    now, &more) == Verdict::kError;
  // The peer's packets were received, so they are acknowledged even if an own request failed.
  if (!answers_first && responder_.transmit(burst, kQuotaPackets, &more) == Verdict::kError) {
    on_own_error();
    return true;
  }
  if (failed) {
    on_own_error();
    return responder_.closing();
  }
  report_if_drained();
  return more;
}

// Sends for UC and UD.
bool Qp::transmit_unreliable(link::Burst& burst, bool may_begin) {
  bool more = false;
  Verdict verdict = Verdict::kGoOn;
  if (core_.init.type == QpType::kUc) {
    verdict = uc_.transmit(burst, kQuotaPackets, may_begin, &more);
  } else {
    verdict = ud_.transmit(burst, kQuotaPackets, may_begin, &more);
  }
  if (verdict == Verdict::kError) on_send_failed();
  report_if_drained();
  return more;
}

// A packet in a lane costs no system call, so waiting for more would gain nothing.
bool Qp::posts_can_wait() const {
  return core_.init.type == QpType::kRc && core_.attributes.state == QpState::kRts &&
         core_.lane == nullptr && requester_.posts_can_wait();
}

void Qp::burst_sent() {
  const bool good = uc_.complete_sent() == Verdict::kGoOn && ud_.complete_sent() == Verdict::kGoOn;
  if (!good) on_send_failed();
  report_if_drained();
}

void Qp::on_send_failed() {
  set_state(QpState::kSqe);  // receiving continues (vol1 10.3.1.6)
  flush_sends();
}

void Qp::on_timer(Time now) {
  if (now < deadline()) return;
  if (flush_at_ != kNever) return flush();
  if (requester_.on_timer(now) == Verdict::kError) on_own_error();
  report_if_drained();
}

Time Qp::deadline() const {
  if (flush_at_ != kNever) return flush_at_;
  const QpState state = core_.attributes.state;
  const bool sends = state == QpState::kRts || state == QpState::kSqd;
  return core_.init.type == QpType::kRc && sends ? requester_.deadline() : kNever;
}

// Reports once that SQD is drained: all requests that were started are complete (vol1 10.3.1.5).
void Qp::report_if_drained() {
  const QpAttributes& a = core_.attributes;
  if (a.state != QpState::kSqd || drain_reported_) return;
  if (core_.init.type == QpType::kRc && !requester_.drained()) return;
  if (core_.init.type == QpType::kUc && !uc_.drained()) return;
  if (core_.init.type == QpType::kUd && !ud_.drained()) return;
  drain_reported_ = true;
  if (a.sqd_notify) core_.raise(QpEvent::Kind::kSqDrained);
}

}  // namespace verbena::hca
