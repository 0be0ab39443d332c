// Implements disconnecting, which either side may begin: DREQ, DREP, timewait (vol1 12.9.5, 12.9.8,
// 12.10.8).

#include <algorithm>

#include "cm/endpoint.h"

namespace verbena::cm {

using wire::cm::AttributeId;
using wire::cm::Drep;
using wire::cm::Dreq;
using wire::cm::RejReason;
using wire::cm::RejSubject;

Endpoint::Endpoint(Services& services, const InheritedConnection& inherited, std::uint64_t tid)
    : services_(services),
      cookie_(0),
      active_(true),  // the true side is not known, but a disconnect does not need it
      state_(State::kEstablished),
      was_established_(true),
      address_(inherited.address),
      tid_(tid),
      local_id_(inherited.local_id),
      remote_id_(inherited.remote_id),
      local_qpn_(inherited.local_qpn),
      remote_qpn_(inherited.remote_qpn),
      packet_life_(inherited.packet_life) {}

Result<void> Endpoint::disconnect(std::span<const std::byte> private_data, Time now) {
  switch (state_) {
    case State::kRepSent:
    case State::kMraRepReceived:
      if (is_queued()) {  // the REP was never sent
        report_disconnected(Disconnected::Cause::kLocal, nullptr);
        refuse_req({}, now);
        return {};
      }
      [[fallthrough]];
    case State::kEstablished: send_dreq(private_data, now); return {};
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kRepReceived:
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kDreqSent:
    case State::kTimewait:
    case State::kClosed: break;
  }
  return fail(Errc::kBadState, "not connected");
}

void Endpoint::check_stale(Time now) {
  switch (state_) {
    case State::kReqReceived:
    case State::kMraReqSent:  // the peer does not know our id yet, so a probe would get a DREP
      report_rejected(RejReason::kStaleConnection);
      return refuse_req({.reason = RejReason::kStaleConnection}, now);
    case State::kRepReceived:
    case State::kEstablished:
      if (!probe_) send_probe(now);
      return;
    case State::kRepSent:
    case State::kMraRepReceived:  // the REP itself is a probe: the peer answers it, or it times out
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kDreqSent:
    case State::kTimewait:
    case State::kClosed: return;
  }
}

void Endpoint::send_probe(Time now) {
  constexpr Qpn kNoQpn{};
  probe_ = std::make_unique<Probe>();
  probe_->sent =
      store(Dreq{.local_comm_id = local_id_, .remote_comm_id = remote_id_, .remote_qpn = kNoQpn});
  probe_->retry.start(now, round_trip(), kProbeTimeout, kProbeRepeatsMax, services_.random);
  send(probe_->sent);
}

// A silent peer has the connection, or cannot be reached.  Both are no reason to end it.
void Endpoint::on_probe_timer(Time now) {
  switch (probe_->retry.next_action(now, services_.random)) {
    case Retry::Action::kWait: break;
    case Retry::Action::kRepeat: send(probe_->sent, Outbox::Kind::kRepeat); break;
    case Retry::Action::kGiveUp: probe_.reset(); break;
  }
}

void Endpoint::on_dreq(const Dreq& dreq, Time now) {
  switch (state_) {
    case State::kRepSent:
    case State::kMraRepReceived:  // the peer is connected: its RTU got lost
      if (is_queued()) return ignore(Ignored::kWrongState);
      report_established(Established::Cause::kDreq, nullptr);
      break;
    case State::kRepReceived:
    case State::kEstablished:
    case State::kDreqSent:  // two DREQs crossed
      break;
    case State::kTimewait:
      count_duplicate(AttributeId::kDreq);
      if (answer_.id() == AttributeId::kDrep) return send(answer_, Outbox::Kind::kRepeat);
      answer_ = store(Drep{.local_comm_id = local_id_, .remote_comm_id = remote_id_});
      return send(answer_);
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kClosed: return ignore(Ignored::kWrongState);
  }
  answer_ = store(Drep{.local_comm_id = local_id_, .remote_comm_id = remote_id_});
  send(answer_);
  report_disconnected(Disconnected::Cause::kPeer, &dreq);
  enter_timewait(now);
}

void Endpoint::on_drep(Time now) {
  if (probe_) {
    if (state_ == State::kRepReceived) {
      report_rejected(RejReason::kStaleConnection);
    } else {
      report_disconnected(Disconnected::Cause::kReset, nullptr);
    }
    return enter_timewait(now);
  }
  if (state_ != State::kDreqSent) {
    if (state_ == State::kTimewait) return count_duplicate(AttributeId::kDrep);
    return ignore(Ignored::kWrongState);
  }
  if (is_queued()) return ignore(Ignored::kWrongState);
  note_answer(now);
  report_disconnected(Disconnected::Cause::kLocal, nullptr);
  enter_timewait(now);
}

void Endpoint::report_disconnected(Disconnected::Cause cause, const Dreq* dreq) {
  if (reported_disconnected_) return;
  reported_disconnected_ = true;
  Disconnected event{.endpoint = handle_, .cookie = cookie_, .cause = cause};
  if (dreq != nullptr) event.private_data = dreq->private_data;
  report(event);
}

void Endpoint::send_dreq(std::span<const std::byte> private_data, Time now) {
  Dreq dreq{.local_comm_id = local_id_, .remote_comm_id = remote_id_, .remote_qpn = remote_qpn_};
  std::ranges::copy(private_data, dreq.private_data.begin());
  request_ = store(dreq);
  probe_.reset();
  state_ = State::kDreqSent;
  queue_request(now, kDisconnectTimeout, repeats_max_);
}

}  // namespace verbena::cm
