#include "cm/endpoint.h"

#include <algorithm>
#include <utility>

#include "cm/reject_info.h"

namespace verbena::cm {

using wire::cm::AttributeId;
using wire::cm::Mra;
using wire::cm::MraSubject;
using wire::cm::Rej;
using wire::cm::RejReason;
using wire::cm::RejSubject;

Result<void> Endpoint::reject(const RejectParameters& parameters, Time now) {
  switch (state_) {
    case State::kReqReceived:
    case State::kMraReqSent: refuse_req(parameters, now); return {};
    case State::kRepReceived:
      send_rej(RejSubject::kRep, parameters);
      remember_rej(now);
      enter_timewait(now);
      return {};
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kRepSent:
    case State::kMraRepReceived:
    case State::kEstablished:
    case State::kDreqSent:
    case State::kTimewait:
    case State::kClosed: break;
  }
  return fail(Errc::kBadState, "no request or response to reject");
}

void Endpoint::abandon(Time now) {
  handle_ = {};
  switch (state_) {
    case State::kReqSent:
    case State::kMraReqReceived:
      if (!is_queued()) send_timeout_rej(RejSubject::kReq);
      close();
      break;
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kRepReceived: (void)reject({}, now); break;
    case State::kRepSent:
    case State::kMraRepReceived:
      if (is_queued()) return refuse_req({}, now);  // the REP was never sent
      [[fallthrough]];
    case State::kEstablished: send_dreq({}, now); break;
    case State::kDreqSent:
    case State::kTimewait:
    case State::kClosed: break;
  }
}

void Endpoint::on_mra(const Mra& mra, Time now) {
  const Duration extension = timeout_of_code(mra.service_timeout);
  switch (state_) {
    case State::kReqSent:
    case State::kMraReqReceived:
      if (mra.message_mraed != MraSubject::kReq || is_queued()) {
        return ignore(Ignored::kWrongState);
      }
      state_ = State::kMraReqReceived;
      return retry_.extend(now, extension, services_.random);
    case State::kRepSent:
    case State::kMraRepReceived:
      if (mra.message_mraed != MraSubject::kRep || is_queued()) {
        return ignore(Ignored::kWrongState);
      }
      state_ = State::kMraRepReceived;
      return retry_.extend(now, extension, services_.random);
    case State::kEstablished:
      if (mra.message_mraed != MraSubject::kLap || !waits_for_apr()) {
        return ignore(Ignored::kWrongState);
      }
      alternate_->step = Alternate::Step::kMraReceived;
      return retry_.extend(now, extension, services_.random);
    case State::kRepReceived:
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kDreqSent:
    case State::kTimewait:
    case State::kClosed: return ignore(Ignored::kWrongState);
  }
}

void Endpoint::on_rej(const Rej& rej, Time now) {
  const auto report_rej = [&] {
    report(Rejected{.endpoint = handle_, .cookie = cookie_, .rej = rej});
  };
  switch (state_) {
    case State::kReqSent:
    case State::kMraReqReceived:
      // The REJ of a consumer names an endpoint of the peer.  This REJ names no endpoint, so the
      // peer has not called connect() yet.
      if (peer_to_peer_ && rej.reason == RejReason::kInvalidServiceId &&
          rej.local_comm_id == CommId{}) {
        peer_not_ready_ = true;
        return;
      }
      report_rej();
      // The peer may still have the last connection of our QP, so the QP needs timewait (vol1
      // 12.10.8.3).
      if (rej.reason == RejReason::kStaleConnection) {
        return enter_timewait(now);
      }
      return close();
    case State::kReqReceived:
    case State::kMraReqSent: report_rej(); return close();
    case State::kRepReceived:
    case State::kRepSent:
    case State::kMraRepReceived:
      report_rej();
      // A QP whose REP was never sent needs no timewait.
      return is_queued() && !active_ ? close() : enter_timewait(now);
    case State::kEstablished:
    case State::kDreqSent:
      report_disconnected(Disconnected::Cause::kReset, nullptr);
      return enter_timewait(now);
    case State::kTimewait:
    case State::kClosed: return count_duplicate(AttributeId::kRej);
  }
}

void Endpoint::on_timer(Time now) {
  if (state_ == State::kTimewait) {
    if (now < deadline()) return;
    report(TimewaitExit{.endpoint = handle_, .cookie = cookie_});
    return close();
  }
  if (is_queued()) {
    if (now < deadline()) return;
    return retry_.has_timed_out(now) ? give_up(now) : send_request(now);
  }
  if (probe_) on_probe_timer(now);
  switch (retry_.next_action(now, services_.random)) {
    case Retry::Action::kWait: break;
    case Retry::Action::kRepeat:
      send(state_ == State::kEstablished ? alternate_->sent : request_, Outbox::Kind::kRepeat);
      break;
    case Retry::Action::kGiveUp: give_up(now); break;
  }
}

// Ends an exchange that the peer did not answer.  After a REQ or REP, a REJ with reason 4 (timeout)
// tells the peer, if the REJ arrives.
void Endpoint::give_up(Time now) {
  const bool never_sent = is_queued();
  Unreachable event{
      .endpoint = handle_, .cookie = cookie_, .tries = retry_.tries(), .spent = retry_.spent(now)};
  switch (state_) {
    case State::kReqSent:
    case State::kMraReqReceived:
      if (!never_sent) send_timeout_rej(RejSubject::kReq);
      event.step = Unreachable::Step::kReq;
      ++services_.counters.unreachable;
      report(event);
      return close();
    case State::kRepSent:
    case State::kMraRepReceived:
      send_timeout_rej(never_sent ? RejSubject::kReq : RejSubject::kRep);
      remember_rej(now);
      event.step = Unreachable::Step::kRep;
      ++services_.counters.unreachable;
      report(event);
      return never_sent ? close() : enter_timewait(now);
    case State::kDreqSent:
      if (never_sent) send(request_);  // a DREQ is sent at least once
      report_disconnected(Disconnected::Cause::kSilence, nullptr);
      return enter_timewait(now);
    case State::kEstablished: return give_up_alternate_path(now);
    case State::kRepReceived:
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kTimewait:
    case State::kClosed: VB_CHECK(!"no timer is armed here");
  }
}

void Endpoint::queue_request(Time now, Duration give_up_after, std::uint32_t repeats_max) {
  sending_ = Sending::kQueued;
  retry_.prepare(now, round_trip(), give_up_after, repeats_max);
}

void Endpoint::send_request(Time now) {
  VB_CHECK(send_target() && is_queued());
  send(request_);
  sending_ = Sending::kSent;
  retry_.set_round_trip(round_trip());
  retry_.note_sent(now, services_.random);
}

void Endpoint::quiesce(Time until) {
  VB_CHECK(is_queued());
  sending_ = Sending::kQuiescing;
  retry_.set_due(until);
}

void Endpoint::end_quiesce() {
  VB_CHECK(is_quiescing());
  sending_ = Sending::kQueued;
  retry_.postpone_to_timeout();
}

StoredMad Endpoint::store(const wire::cm::Message& message, std::uint64_t tid,
                          std::uint32_t attribute_modifier) {
  const AttributeId id = wire::cm::attribute_id(message);
  return {id, wire::cm::encode_mad(wire::cm::mad_header(id, tid, attribute_modifier), message)};
}

void Endpoint::send(const StoredMad& stored, Outbox::Kind kind) {
  VB_CHECK(stored.id() != AttributeId{});
  services_.outbox.send(address_, stored.id(), stored.mad(), kind);
}

void Endpoint::report(const Event& event) {
  if (handle_) services_.outbox.report(event);
}

void Endpoint::send_rej(RejSubject subject, const RejectParameters& parameters) {
  Rej rej{.local_comm_id = local_id_,
          .remote_comm_id = remote_id_,
          .message_rejected = subject,
          .reason = parameters.reason};
  set_reject_info(rej, parameters.additional_info);
  std::ranges::copy(parameters.private_data, rej.private_data.begin());
  services_.counters.count_reject_sent(rej.reason);
  answer_ = store(rej);
  send(answer_);
}

// Names our CA GUID in the REJ, so that the peer finds its endpoint even if one side has not
// learned the other's id yet (vol1 12.6.7.2).
void Endpoint::send_timeout_rej(RejSubject subject) {
  const auto guid = wire::encode(CaGuidInfo{services_.config.ca_guid});
  send_rej(subject, {.reason = RejReason::kTimeout, .additional_info = guid});
}

// Stores the REJ, in case it gets lost.  A peer repeats its REQ or REP within about its response
// timeout plus a round trip.  A repeat within twice that time, but at most kTimewaitMax, gets the
// same REJ.
void Endpoint::remember_rej(Time now) {
  const Duration interval =
      std::max<Duration>(timeout_of_code(peer_response_timeout_), Retry::kIntervalMax) +
      2 * timeout_of_code(packet_life_);
  services_.rej_cache.remember({remote_id_, remote_guid_}, answer_.mad(),
                               now + std::min(2 * interval, kTimewaitMax));
}

void Endpoint::report_rejected(RejReason reason) {
  report(Rejected{.endpoint = handle_,
                  .cookie = cookie_,
                  .rej = {.local_comm_id = remote_id_,
                          .remote_comm_id = local_id_,
                          .message_rejected = RejSubject::kOther,
                          .reason = reason}});
}

Duration Endpoint::timewait() const {
  if (remote_guid_ == services_.config.ca_guid) {
    return 2 * timeout_of_code(services_.config.local_packet_life);
  }
  return std::min(2 * timeout_of_code(packet_life_) + timeout_of_code(ack_delay_), kTimewaitMax);
}

void Endpoint::enter_timewait(Time now) {
  finish_request();
  retry_.set_deadline(now + timewait());
  state_ = State::kTimewait;
}

void Endpoint::close() {
  finish_request();
  state_ = State::kClosed;
}

}  // namespace verbena::cm
