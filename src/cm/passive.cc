// Implements the passive side: REQ, REP, RTU or the first data (vol1 12.9.6).

#include <algorithm>

#include "cm/endpoint.h"
#include "cm/paths.h"

namespace verbena::cm {

using wire::cm::AttributeId;
using wire::cm::FailoverAccepted;
using wire::cm::MraSubject;
using wire::cm::Path;
using wire::cm::RejReason;
using wire::cm::RejSubject;
using wire::cm::Rep;
using wire::cm::Req;
using wire::cm::Rtu;

Endpoint::Endpoint(Services& services, const mad::Delivered& mad, const Req& req, CommId id,
                   std::uint64_t cookie)
    : services_(services), cookie_(cookie), local_id_(id) {
  become_passive(mad, req);
}

void Endpoint::become_passive(const mad::Delivered& mad, const Req& req) {
  finish_request();
  active_ = false;
  state_ = State::kReqReceived;
  service_id_ = req.service_id;
  address_ = mad.from;
  tid_ = mad.header.transaction_id;
  remote_id_ = req.local_comm_id;
  remote_guid_ = req.local_ca_guid;
  remote_qpn_ = req.local_qpn;
  repeats_max_ = req.max_cm_retries;  // limits the repeats of the REP after each copy of the REQ
  peer_response_timeout_ = req.local_cm_response_timeout;
  // The timeout is 2 x packet life + the peer's ACK delay (vol1 12.7.34), so the code minus one
  // estimates the packet life.
  const auto code = req.primary_path.local_ack_timeout;
  packet_life_ = static_cast<std::uint8_t>(code == 0 ? 0 : code - 1);
  alternate_.reset();
  if (req.alternate_path != Path{}) alternate().proposed = address_of(req.alternate_path, address_);
}

void Endpoint::report_req(const mad::Delivered& mad, const Req& req) {
  report(ReqReceived{.endpoint = handle_,
                     .cookie = cookie_,
                     .req = req,
                     .address = mad.from,
                     .ece = {req.vendor_id, mad.header.attribute_modifier}});
}

void Endpoint::on_duplicate_req(Time now) {
  count_duplicate(AttributeId::kReq);
  switch (state_) {
    case State::kReqReceived:  // our consumer has not answered, so we ask the peer for time
      state_ = State::kMraReqSent;
      answer_ = store(mra_of(MraSubject::kReq));
      return send(answer_);
    case State::kMraReqSent: return send(answer_, Outbox::Kind::kRepeat);
    case State::kRepSent:
    case State::kMraRepReceived:  // the REP got lost or is still queued
      if (is_queued()) return send(store(mra_of(MraSubject::kReq)));
      retry_.peer_repeated(now, repeats_max_, services_.random);
      return send(request_, Outbox::Kind::kRepeat);
    case State::kDreqSent:
    case State::kTimewait:
      if (was_established_) return;  // this REQ is an old copy that arrives late
      if (answer_.id() == AttributeId::kRej) return send(answer_, Outbox::Kind::kRepeat);
      return send_rej(RejSubject::kReq, {});
    case State::kEstablished: return;  // this REQ is an old copy that arrives late
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kRepReceived:
    case State::kClosed: return ignore(Ignored::kWrongState);
  }
}

Result<void> Endpoint::accept(const AcceptParameters& parameters, Time now) {
  if (state_ != State::kReqReceived && state_ != State::kMraReqSent) {
    return fail(Errc::kBadState, "no REQ waits for a REP");
  }
  local_qpn_ = parameters.qpn;
  Rep rep{
      .local_comm_id = local_id_,
      .remote_comm_id = remote_id_,
      .local_qpn = parameters.qpn,
      .starting_psn = parameters.starting_psn,
      .responder_resources = parameters.responder_resources,
      .initiator_depth = parameters.initiator_depth,
      .target_ack_delay = parameters.target_ack_delay,
      .failover_accepted = alternate_ && !parameters.alternate_path_accepted
                               ? FailoverAccepted::kNotSupported
                               : FailoverAccepted::kAccepted,
      .end_to_end_flow_control = parameters.end_to_end_flow_control,
      .rnr_retry_count = parameters.rnr_retry_count,
      .srq = parameters.srq,
      .local_ca_guid = services_.config.ca_guid,
      .private_data = parameters.private_data,
  };
  rep.set_vendor_id(parameters.ece.vendor_id);
  request_ = store(rep, tid_, parameters.ece.options);
  if (alternate_ && parameters.alternate_path_accepted) alternate_->accepted = alternate_->proposed;
  ack_delay_ = parameters.target_ack_delay;
  state_ = State::kRepSent;
  queue_request(now, parameters.give_up_after, repeats_max_);
  return {};
}

Result<void> Endpoint::drop() {
  if (state_ != State::kReqReceived && state_ != State::kMraReqSent) {
    return fail(Errc::kBadState, "the REQ has been answered");
  }
  close();
  return {};
}

void Endpoint::on_rtu(const Rtu& rtu, Time now) {
  if (active_) return ignore(Ignored::kWrongState);
  switch (state_) {
    case State::kRepSent:
    case State::kMraRepReceived:
      if (is_queued()) return ignore(Ignored::kWrongState);  // we sent no REP yet
      rtu_seen_ = true;
      if (state_ == State::kRepSent) note_answer(now);
      return report_established(Established::Cause::kRtu, &rtu);
    case State::kEstablished:
      if (!rtu_seen_) {
        rtu_seen_ = true;
        ++services_.counters.late_rtu;
        return;
      }
      return count_duplicate(AttributeId::kRtu);
    case State::kDreqSent:
    case State::kTimewait: return count_duplicate(AttributeId::kRtu);
    case State::kReqSent:
    case State::kMraReqReceived:
    case State::kRepReceived:
    case State::kReqReceived:
    case State::kMraReqSent:
    case State::kClosed: return ignore(Ignored::kWrongState);
  }
}

// Treats data on the QP like an RTU (vol1 12.9.6, 10.2.6: "communication established").
void Endpoint::comm_established() {
  if (state_ != State::kRepSent && state_ != State::kMraRepReceived) return;
  if (is_queued()) return;  // the data is a late packet of the QP's last connection
  report_established(Established::Cause::kData, nullptr);
}

void Endpoint::report_established(Established::Cause cause, const Rtu* rtu) {
  finish_request();
  request_ = answer_ = {};
  state_ = State::kEstablished;
  was_established_ = true;
  Established event{.endpoint = handle_, .cookie = cookie_, .cause = cause};
  if (rtu != nullptr) event.private_data = rtu->private_data;
  report(event);
}

void Endpoint::refuse_req(const RejectParameters& parameters, Time now) {
  send_rej(RejSubject::kReq, parameters);
  remember_rej(now);
  close();
}

}  // namespace verbena::cm
